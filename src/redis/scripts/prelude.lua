-- One key, a hash:
--   s state: 0 pending, 1 interrupted, 2 completed     t fencing token     a attempt
--   f fingerprint      c claimed first     b attempt begun      l lease until
--   d done             e expires           n note (checkpoint)  r response      p principal
-- Times are milliseconds since the Unix epoch by the server's clock, which stands still in a script.
local key = KEYS[1]
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = math.floor(now_us / 1000)
local function number(n) return string.format('%.0f', n) end
local function found()
  local fields = redis.call('HGETALL', key)
  if #fields == 0 then return {'absent', number(now)} end
  table.insert(fields, 1, number(now))
  table.insert(fields, 1, 'found')
  return fields
end
