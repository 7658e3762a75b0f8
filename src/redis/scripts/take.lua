-- ARGV: token that was seen, fingerprint, lease ms, state
local seen = redis.call('HMGET', key, 't', 's', 'l', 'e', 'a')
if seen[1] ~= ARGV[1] then return {'changed', number(now)} end
local token = number(math.max(now_us, tonumber(ARGV[1]) + 1))
local lease_until = number(now + tonumber(ARGV[3]))
if seen[2] == '2' then
  if not (tonumber(seen[4]) and tonumber(seen[4]) <= now) then return {'changed', number(now)} end
  redis.call('DEL', key)
  redis.call('HSET', key, 's', ARGV[4], 't', token, 'a', '1', 'f', ARGV[2],
    'c', number(now), 'b', number(now), 'l', lease_until)
elseif seen[2] == '0' or seen[2] == '1' then
  if seen[2] == '0' and not (tonumber(seen[3]) and tonumber(seen[3]) <= now) then return {'changed', number(now)} end
  redis.call('HSET', key, 's', ARGV[4], 't', token, 'a', number(tonumber(seen[5]) + 1),
    'b', number(now), 'l', lease_until)
else
  return {'changed', number(now)}
end
return {'granted', number(now), 't', token}
