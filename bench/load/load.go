// Package load puts a closed loop of requests on something: every connection sends
// the next when it has the answer to the last.
package load

import (
	"slices"
	"sync"
	"time"
)

// Result is what a run of requests came to.
type Result struct {
	Requests int
	Rate     float64 // requests a second
	P99      float64 // ms
}

// Run calls request on each of the connections, by their numbers, for a duration.
func Run(connections int, duration time.Duration, request func(connection int) error) (Result, error) {
	var wg sync.WaitGroup
	took := make([][]time.Duration, connections)
	failed := make([]error, connections)
	start := time.Now()
	for i := range connections {
		wg.Go(func() {
			for last := start; last.Sub(start) < duration; {
				if failed[i] = request(i); failed[i] != nil {
					return
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	for _, err := range failed {
		if err != nil {
			return Result{}, err
		}
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	return Result{len(all), float64(len(all)) / elapsed.Seconds(), float64(all[len(all)*99/100].Microseconds()) / 1000}, nil
}
