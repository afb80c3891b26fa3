-- leaky_bucket and token_bucket: the leaky bucket as a meter, and the token
-- bucket, which is the same seen from the other side: a funnel filled with n
-- units is a bucket that lacks n tokens. It holds `limit` units.
--
-- The rate is a fraction in lowest terms, units / micros a microsecond, so that
-- one per seven seconds does not drift. The level is counted in parts: micros to
-- a unit, of which `units` drain in a microsecond.
--
-- Arguments  2: units, micros
-- Limit      the burst
-- Counter
--   until   when the bucket is empty
--   level   parts
--   micros  parts of a unit; they change with the rate, and the level is then
--           converted, a begun unit as a whole one
--   at      the moment that the level is of, µs
-- A clock that stepped back drains nothing until it is where it was; one that
-- has more than a full bucket to catch up with is unreadable.

algorithms.leaky_bucket = function(values, _, limit, cost, now, arg)
  local most = 2 ^ 52 -- parts
  local units, micros = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local function up(a, b) -- a / b, rounded up
    local rest = math.fmod(a, b)
    return (a - rest) / b + (rest > 0 and 1 or 0)
  end
  local function pay_off(parts)
    return up(parts, units)
  end

  local level, at, unreadable = 0, now, false
  if values then
    local held, parts, since = string.match(values, '^ (%d+) (%d+) (%d+)$')
    held, parts, since = tonumber(held), tonumber(parts), tonumber(since)
    if not held or held > most or parts < 1 or parts > most or since > now + pay_off(limit * micros) then
      unreadable = true
    elseif parts ~= micros and up(held, parts) > (most - math.fmod(most, micros)) / micros then
      unreadable = true
    else
      if parts ~= micros then
        held = up(held, parts) * micros
      end
      at = math.max(since, now)
      local passed = math.max(0, now - since)
      if passed < pay_off(held) then
        level = held - passed * units
      end
    end
  end

  local lag = at - now
  local function standing(parts)
    local room = limit * micros - parts
    local remaining = room > 0 and (room - math.fmod(room, micros)) / micros or 0
    if parts == 0 then
      return remaining, 0, 0
    end
    local surplus = math.max(0, parts - (limit - remaining - 1) * micros)
    return remaining, pay_off(surplus) + lag, pay_off(parts) + lag
  end
  local remaining, next, reset = standing(level)
  if cost > limit then
    return -1, unreadable, remaining, next, reset
  end
  local owed = math.max(0, level + cost * micros)
  local over, retry = owed - limit * micros, 0
  if cost > 0 and over > 0 then
    retry = pay_off(over) + lag
  end
  local left, sooner, full = standing(owed)
  return retry, unreadable, remaining, next, reset, left, sooner, full,
    at + pay_off(owed), string.format(' %.0f %.0f %.0f', owed, micros, at)
end
algorithms.token_bucket = algorithms.leaky_bucket
