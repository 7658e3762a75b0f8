-- ARGV: fingerprint, lease ms, first sent ms or -1, retention ms, state
local answer = found()
if answer[1] == 'found' then return answer end
local first_sent = tonumber(ARGV[3])
if first_sent >= 0 and first_sent <= now - tonumber(ARGV[4]) then return {'late', number(now)} end
redis.call('HSET', key, 's', ARGV[5], 't', number(now_us), 'a', '1', 'f', ARGV[1],
  'c', number(now), 'b', number(now), 'l', number(now + tonumber(ARGV[2])))
return {'granted', number(now), 't', number(now_us)}
