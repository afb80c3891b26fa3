-- fixed_window: at most `limit` units in each window; the whole quota is back
-- when the window ends.
--
-- Arguments
--   align: first_request   1: length, µs from a window's first charge to its end
--   align: calendar        5: consecutive boundaries of windows, µs since the
--                             epoch, computed by the caller, who knows the
--                             timezones: the windows before, around and after
--                             the caller's clock, and the end of one more. The
--                             script picks by its own clock, so that a caller
--                             whose clock is wrong cannot move a window.
-- Counter
--   until   the end of the window
--   used    units charged in it
--
-- The window that a counter is in lasts until its end, also when the clock steps
-- back, or until all that was charged in it is given back. Only an end beyond the
-- window after this one is taken for unreadable.

algorithms.fixed_window = function(held, limit, cost, now, arg, count)
  local ends, horizon
  if count == 1 then
    ends = now + ARGV[arg]
    horizon = ends + ARGV[arg]
  else
    for i = arg, arg + count - 3 do
      if ARGV[i] + 0 <= now and now < ARGV[i + 1] + 0 then
        ends, horizon = ARGV[i + 1] + 0, ARGV[i + 2] + 0
      end
    end
    if not ends then
      return nil -- the caller's clock is more than a window away from ours
    end
  end

  local used, expires, unreadable = 0, nil, false
  if held then
    local ending, units = string.match(held, '^ (%d+) (%d+)$')
    if not ending or #ending > 16 or #units > 15 or ending + 0 > horizon then
      unreadable = true
    elseif ending + 0 > now then
      used, ends, expires = units + 0, ending + 0, ending
    end
  end

  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > 0 and used + cost > limit then
    retry = ends - now
  end
  return retry, unreadable, function(charge)
    local total = used + charge
    if total <= 0 then
      return limit, 0, 0, string.format(' %.0f 0', now), now
    end
    local remaining, left = limit - total, ends - now
    if remaining < 0 then
      remaining = 0
    end
    if expires then
      return remaining, left, left, ' ' .. expires .. ' ' .. total
    end
    return remaining, left, left, string.format(' %.0f %.0f', ends, total), ends
  end
end
