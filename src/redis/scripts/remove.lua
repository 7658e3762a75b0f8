-- ARGV: 1 to remove a key that is not completed too
local held = redis.call('HMGET', key, 's', 'a', 'e')
if not held[1] then return {'absent', number(now)} end
if held[1] ~= '2' and ARGV[1] ~= '1' then return {'pending', number(now), 'a', held[2]} end
redis.call('DEL', key)
if held[1] == '2' and tonumber(held[3]) <= now then return {'absent', number(now)} end
return {'removed', number(now)}
