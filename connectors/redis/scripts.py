"""The scripts that change a Redis server. The server runs each as one step, and no command in between.

A script compares the state of the sink first, and changes nothing if it differs. No command of a script can
fail for an entry of another type, so a script that begins also ends.
"""

WRITE = """
local state = KEYS[1]
local found = redis.call('HMGET', state, 'generation', 'record')
if found[1] ~= ARGV[1] or found[2] ~= ARGV[2] then return false end
local ttl, columns, upserts = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local at, inserted, deleted, names = 9, 0, 0, {}
for i = 1, columns do
  names[i] = ARGV[at]
  at = at + 1
end
for i = 2, upserts + 1 do
  local key = KEYS[i]
  if columns == 0 then
    inserted = inserted + 1 - redis.call('EXISTS', key)
    if ttl then
      redis.call('SET', key, ARGV[at], 'PX', ttl)
    else
      redis.call('SET', key, ARGV[at])
    end
    at = at + 1
  else
    inserted = inserted + 1 - redis.call('DEL', key)
    local fields, size = {}, 0
    for c = 1, columns do
      local value = ARGV[at]
      if value ~= '' then
        fields[size + 1], fields[size + 2] = names[c], string.sub(value, 2)
        size = size + 2
      end
      at = at + 1
    end
    for first = 1, size, 1000 do
      redis.call('HSET', key, unpack(fields, first, math.min(first + 999, size)))
    end
    if ttl then redis.call('PEXPIRE', key, ttl) end
  end
end
for i = upserts + 2, #KEYS do
  deleted = deleted + redis.call('DEL', KEYS[i])
end
inserted = redis.call('HINCRBY', state, 'inserted', inserted)
deleted = redis.call('HINCRBY', state, 'deleted', deleted)
local updated = math.max(tonumber(ARGV[8]) - inserted, 0)
if ARGV[4] == '' then
  redis.call('HSET', state, 'pending', ARGV[3])
else
  local changes = string.format('%.0f,%.0f,%.0f', inserted, updated, deleted)
  redis.call('HSET', state, 'record', ARGV[4], 'changes', changes)
  redis.call('HDEL', state, 'pending', 'inserted', 'deleted')
end
return {inserted, updated, deleted}
"""
"""Write a chunk of an epoch, and with the last one the record. Return the changes of the epoch so far.

KEYS: state, entries to write, entries to delete. ARGV: generation, record, epoch, next record or "", TTL in
milliseconds or "", number of columns (0: JSON), entries of this chunk to write, rows of the epoch to write,
names of columns, values. The value of a column is "" for NULL and begins with "=" otherwise.

`inserted` and `deleted` of the state are sums over the chunks of interrupted attempts too, so they stay equal
to the change of the number of entries.
"""

SET_STATE = """
local found = redis.call('HMGET', KEYS[1], 'generation', 'record')
if (found[1] or '') ~= ARGV[1] or (found[2] or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'generation', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'record', ARGV[4])
  redis.call('HDEL', KEYS[1], 'changes', 'pending', 'inserted', 'deleted')
end
return 1
"""
"""Set the generation and, unless it is "", the record. ARGV: generation and record now, then the new ones."""

TRUNCATE = """
local found = redis.call('HMGET', KEYS[1], 'generation', 'record')
if (found[1] or '') ~= ARGV[1] or (found[2] or '') ~= ARGV[2] then return 0 end
local cursor = '0'
repeat
  local step = redis.call('SCAN', cursor, 'MATCH', ARGV[3], 'COUNT', 1000)
  cursor = step[1]
  for _, key in ipairs(step[2]) do redis.call('UNLINK', key) end
until cursor == '0'
redis.call('HDEL', KEYS[1], 'pending', 'inserted', 'deleted')
return 1
"""
"""Remove all entries that match a pattern. ARGV: generation, record, pattern."""

SET_CLAIMS = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end
return 1
"""
"""Replace the claims and remove the states of sinks. KEYS: claims, states. ARGV: claims now, new claims."""
