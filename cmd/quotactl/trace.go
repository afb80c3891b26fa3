package main

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"kong-quota/quota"
)

// request is one of the traffic.
type request struct {
	at   time.Time
	who  string
	cost int64
}

// longestLine is the length of a line of a trace at most.
const longestLine = 1 << 20

// lines reads a request from each line that is not empty. It ends with the first
// that is none.
func lines(in io.Reader, read func(string) (request, error)) iter.Seq2[request, error] {
	return func(yield func(request, error) bool) {
		scanner := bufio.NewScanner(in)
		scanner.Buffer(nil, longestLine)
		n := 0
		for scanner.Scan() {
			n++
			text := strings.TrimSpace(scanner.Text())
			if text == "" {
				continue
			}
			r, err := read(text)
			if err != nil {
				err = fmt.Errorf("line %d: %w", n, err)
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
		if err := scanner.Err(); err != nil {
			yield(request{}, fmt.Errorf("line %d: %w", n+1, err))
		}
	}
}

// readLine reads "MOMENT WHO [COST]".
func readLine(text string) (r request, err error) {
	fields := strings.Fields(text)
	if len(fields) < 2 || len(fields) > 3 {
		return request{}, fmt.Errorf("%q must be: moment, who, and perhaps a cost", text)
	}
	r = request{who: fields[1], cost: 1}
	if r.at, err = time.Parse(time.RFC3339, fields[0]); err != nil {
		seconds, fraction, _ := strings.Cut(fields[0], ".")
		s, err := strconv.ParseInt(seconds, 10, 40)
		micros, err2 := strconv.ParseInt((fraction + "000000")[:6], 10, 32)
		if err != nil || err2 != nil || s < 0 || micros < 0 {
			return request{}, fmt.Errorf("moment: %q must be RFC 3339 or seconds since 1970", fields[0])
		}
		r.at = time.Unix(s, micros*1000)
	}
	if len(fields) == 3 {
		if r.cost, err = strconv.ParseInt(fields[2], 10, 64); err != nil || r.cost < 0 || r.cost > quota.MaxCost {
			return request{}, fmt.Errorf("cost: %q must be a number from 0 to %d", fields[2], int64(quota.MaxCost))
		}
	}
	return r, nil
}

// readAccessLog reads nginx' combined format: ADDRESS - USER [TIME] …
func readAccessLog(text string) (request, error) {
	address, rest, _ := strings.Cut(text, " ")
	_, rest, opened := strings.Cut(rest, "[")
	moment, _, closed := strings.Cut(rest, "]")
	at, err := time.Parse("02/Jan/2006:15:04:05 -0700", moment)
	if !opened || !closed || err != nil {
		return request{}, fmt.Errorf("%.80q is no line of an access log: ADDRESS - USER [02/Jan/2006:15:04:05 -0700] …", text)
	}
	return request{at, address, 1}, nil
}

// madeUp is even traffic of several callers, who come one after the other.
func madeUp(rate, length string, callers int) (iter.Seq2[request, error], error) {
	count, per, _ := strings.Cut(rate, "/")
	n, err := strconv.ParseInt(count, 10, 32)
	unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[per]
	if err != nil || n < 1 || unit == 0 {
		return nil, fmt.Errorf("--rate: %q must be a number per s, m or h, such as 15/s", rate)
	}
	whole, err := time.ParseDuration(length)
	if err != nil || whole <= 0 {
		return nil, fmt.Errorf("--for: %q must be a duration such as 10m", length)
	}
	if callers < 1 {
		return nil, fmt.Errorf("--callers: %d must be at least 1", callers)
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return func(yield func(request, error) bool) {
		for i := int64(0); ; i++ {
			after := time.Duration(float64(i) * float64(unit) / float64(n)).Round(time.Microsecond)
			if after >= whole {
				return
			}
			for who := range callers {
				if !yield(request{start.Add(after), "caller-" + strconv.Itoa(who+1), 1}, nil) {
					return
				}
			}
		}
	}, nil
}
