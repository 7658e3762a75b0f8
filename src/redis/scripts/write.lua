-- ARGV: token, what, and what belongs to it
local held = redis.call('HMGET', key, 't', 's', 'b')
if held[1] ~= ARGV[1] or held[2] ~= '0' then return found() end
local what = ARGV[2]
if what == 'renew' then
  redis.call('HSET', key, 'l', number(now + tonumber(ARGV[3])))
elseif what == 'checkpoint' then
  if ARGV[3] == '' then redis.call('HDEL', key, 'n') else redis.call('HSET', key, 'n', ARGV[3]) end
elseif what == 'complete' then
  -- retention ms, then pairs of field and value: response, principal
  -- What can't be read is for the caller to name.
  local started = tonumber(held[3])
  if not started or started < 0 or started > 253402300799999 then return found() end
  now = math.max(now, started)
  local expires = number(now + tonumber(ARGV[3]))
  redis.call('HDEL', key, 'n', 'l')
  redis.call('HSET', key, 's', '2', 'd', number(now), 'e', expires)
  for i = 4, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
  redis.call('PEXPIREAT', key, expires)
elseif what == 'release' then
  redis.call('DEL', key)
elseif what == 'interrupt' then
  redis.call('HSET', key, 's', '1')
end
return {'done', number(now)}
