"""The one script that writes Redis, and what it answers.

It decides by Redis's own clock and by what Redis shows at that moment, so neither a slow network, nor a
paused process, nor a second guard can make it show something older than before:

- The value lives until ``ttl`` after its *proof*, not after its arrival. The guard reckons when, by Redis's
  clock, the proof's question was sent: each answer of the script carries the time, so a question sent at p
  was sent, by Redis's clock, not before ``time - (answer received - p)``. That is the earliest it can have
  been; a write that arrives after proof + ttl changes nothing.
- A value of a greater (log_id, epoch) is never replaced, nor one of the same epoch by an older proof.
- Where nothing is shown, a flush may have taken what was. The script then leaves a *vacancy*, a token that
  permits nothing, and the write is taken only from a guard that names this token and whose proof was asked
  after it had seen it. What was shown before the flush was in the log before the flush, the proof's question
  came after, so the new value holds all of that. A second flush takes the token away, and it begins again.
"""

from typing import Final

import msgspec

VACANCY_MS: Final = 60_000
"""A token that nobody has used by then is forgotten, and the next write makes another."""

WRITE: Final = """
local shown = redis.call('HMGET', KEYS[1], 'log_id', 'epoch', 'proved_at_ms', 'vacancy')
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local log_id, epoch, proved_at_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function answer(result)
  return {result, now_ms, shown[1] or '', tonumber(shown[2]) or 0, shown[4] or ''}
end

if not shown[1] then
  if not shown[4] then
    shown[4] = time[1] .. '.' .. time[2] .. '.' .. ARGV[6]
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('HSET', KEYS[1], 'vacancy', shown[4])
    redis.call('PEXPIRE', KEYS[1], ARGV[7])
  end
  if shown[4] ~= ARGV[5] then
    return answer('vacant')
  end
elseif shown[1] > log_id or (shown[1] == log_id and tonumber(shown[2]) > epoch) then
  return answer('overtaken')
elseif shown[1] == log_id and tonumber(shown[2]) == epoch and tonumber(shown[3]) > proved_at_ms then
  return answer('proved_already')
end
if proved_at_ms > now_ms or proved_at_ms + ttl_ms <= now_ms then
  return answer('too_late')
end

local fields, nodes = tonumber(ARGV[8]), #ARGV
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'log_id', log_id, 'epoch', epoch, 'proved_at_ms', ARGV[3], 'ttl_ms', ARGV[4])
for i = 9, 8 + fields, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
for i = 9 + fields, nodes, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIREAT', KEYS[1], proved_at_ms + ttl_ms)
redis.call('PEXPIREAT', KEYS[2], proved_at_ms + ttl_ms)
shown[1], shown[2] = log_id, epoch
return answer('written')
"""


class Written(msgspec.Struct, frozen=True):
    """``result`` is one of the words above; what Redis shows now, and its time."""

    result: str
    redis_now_ms: int
    log_id: str
    epoch: int
    vacancy: str

    @property
    def place(self) -> tuple[str, int]:
        return self.log_id, self.epoch


def parse_answer(answer: list[bytes | int]) -> Written:
    result, now_ms, log_id, epoch, vacancy = answer
    return Written(_text(result), int(now_ms), _text(log_id), int(epoch), _text(vacancy))


def _text(value: bytes | int | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
