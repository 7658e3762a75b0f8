-- ARGV: 1 to remove a key that is not completed too, or that can't be read
local is_forced = ARGV[1] == '1'
local held = redis.pcall('HMGET', key, 's', 'e')
if held.err and not is_forced then return held end
if not is_forced and held[1] ~= '2' then return found() end
local expires = held[1] == '2' and tonumber(held[2])
if redis.call('DEL', key) == 0 or (expires and expires <= now) then return {'absent', number(now)} end
return {'removed', number(now)}
