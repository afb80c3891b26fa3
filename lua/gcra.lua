-- gcra: the generic cell rate algorithm (ITU-T I.371, as in throttled and
-- redis-cell). A unit has an emission interval; the counter is the theoretical
-- arrival time, the moment at which all that was charged will have been emitted.
-- A request passes if that moment is then at most `limit` intervals ahead.
--
-- The interval is a fraction in lowest terms, micros / units, so that nothing is
-- rounded away. What is owed is counted in parts: micros to a unit, of which
-- `units` are paid off in a microsecond.
--
-- Arguments  2: units, micros
-- Limit      the burst
-- Counter
--   until   the theoretical arrival time, rounded up to a microsecond
--   ahead   what it was rounded up by, in parts
-- A moment of arrival that is more than two full bursts ahead is unreadable.

algorithms.gcra = function(values, expires, limit, cost, now, arg)
  local units, micros = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local function pay_off(parts)
    local rest = math.fmod(parts, units)
    return (parts - rest) / units + (rest > 0 and 1 or 0)
  end

  local debt, unreadable = 0, false
  if values then
    local ahead, rounding = expires - now, tonumber(string.match(values, '^ (%d+)$'))
    if not rounding or rounding > 2 ^ 53 or ahead > 2 * pay_off(limit * micros) then
      unreadable = true
    elseif ahead > 0 then
      debt = math.max(0, ahead * units - math.min(rounding, units - 1))
    end
  end

  local function standing(parts)
    local room = limit * micros - parts
    local remaining = room > 0 and (room - math.fmod(room, micros)) / micros or 0
    local surplus = math.max(0, parts - (limit - remaining - 1) * micros)
    return remaining, parts > 0 and pay_off(surplus) or 0, pay_off(parts)
  end
  local remaining, next, reset = standing(debt)
  if cost > limit then
    return -1, unreadable, remaining, next, reset
  end
  local owed = math.max(0, debt + cost * micros)
  local over, retry = owed - limit * micros, 0
  if cost > 0 and over > 0 then
    retry = pay_off(over)
  end
  local ahead = pay_off(owed)
  local left, sooner, full = standing(owed)
  return retry, unreadable, remaining, next, reset, left, sooner, full,
    now + ahead, string.format(' %.0f', ahead * units - owed)
end
