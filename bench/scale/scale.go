// Package scale works a fleet through on paper: what a million consumers with a
// million requests a second ask of Redis, by docs/SCALING.md's formulas, and by a
// simulation that follows every request by the rules of package leases.
package scale

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"

	"kong-quota/bench/report"
)

const (
	consumers = 1_000_000
	requests  = 1_000_000.0 // a second, of all
	nodes     = 50
	limit     = 100_000 // a day and consumer
	share     = 0.01
	exponent  = 1.0 // of the Zipf law by which requests fall on consumers
)

// Run compares formula and simulation over the age of a lease.
func Run(_ int, progress func(string)) ([]report.Section, error) {
	s := report.Section{
		Title: "On paper: a million consumers, a million requests a second",
		Text: fmt.Sprintf("%d nodes, requests spread over them evenly and over consumers by Zipf's law; a limit of %d a\nday, leases with share %.2f. Calls are those that reach Redis: by the formula of\n[docs/SCALING.md](../docs/SCALING.md), and by a simulation of every request of a sample of consumers, node\nby node, by the rules of package leases.",
			nodes, limit, share),
		Table: report.Table{Head: []string{"max_age s", "calls/s, formula", "calls/s, simulated", "off by %", "of all requests"}},
	}
	formula, simulated := report.Line{Name: "formula"}, report.Line{Name: "simulation"}
	for _, age := range []float64{0.5, 1, 2, 5, 10, 30, 60} {
		progress(fmt.Sprintf("leases of %v s", age))
		byFormula, bySimulation := 0.0, 0.0
		each(func(rate, weight float64) {
			perNode := rate / nodes
			byFormula += weight * nodes * Calls(perNode, share*limit, age)
			bySimulation += weight * nodes * simulate(perNode, share*limit, age)
		})
		s.Table.Add(age, byFormula, bySimulation, fmt.Sprintf("%+.1f", 100*(byFormula/bySimulation-1)), fmt.Sprintf("%.1f %%", bySimulation/requests*100))
		formula.X, formula.Y = append(formula.X, age), append(formula.Y, byFormula)
		simulated.X, simulated.Y = append(simulated.X, age), append(simulated.Y, bySimulation)
	}
	s.Plot = &report.Plot{File: "scale", XTitle: "max_age, seconds", Unit: "calls of Redis a second", Lines: []report.Line{formula, simulated}}
	return []report.Section{s}, nil
}

// each gives a rate for each of a few consumers that stand for all, with how many
// they stand for: the first hundred ranks by themselves, the others by powers.
func each(f func(rate, weight float64)) {
	norm := 0.0
	for rank := 1; rank <= consumers; rank++ {
		norm += math.Pow(float64(rank), -exponent)
	}
	for low := 1; low <= consumers; {
		high := low
		if low > 100 {
			high = min(consumers, int(float64(low)*1.1))
		}
		sum := 0.0
		for rank := low; rank <= high; rank++ {
			sum += math.Pow(float64(rank), -exponent)
		}
		weight := float64(high - low + 1)
		f(requests*sum/norm/weight, weight)
		low = high + 1
	}
}

// Calls is the formula: calls a second of one node for one consumer, who comes at
// the rate, with blocks of so many units that are kept for age seconds.
//
// A consumer who comes again within age is in a cycle: a first request, which asks
// and takes no block; a second, which takes one; what is left goes back when the
// block's age is over. One who spends a block sooner takes one call a block. One who
// comes more seldom asks every time.
func Calls(rate, block, age float64) float64 {
	if rate*age >= block { // blocks are spent before they are old
		return rate / block
	}
	again := 1 - math.Exp(-rate*age)               // that a second request comes in time
	second := again/rate - age*math.Exp(-rate*age) // until it, where it does
	return (1 + 2*again) / (1/rate + second + age)
}

// simulate follows requests of one node for one consumer by the rules of package
// leases, and gives its calls a second.
func simulate(rate, block, age float64) float64 {
	random := rand.New(rand.NewPCG(uint64(rate*1e9), 1))
	duration := math.Max(200*age, 2000/rate)
	if rate*age > block {
		duration = 50 * block / rate
	}
	duration = math.Min(duration, 3e6/rate) // no more than three million requests
	var events queue
	heap.Push(&events, event{random.ExpFloat64() / rate, -1})
	calls, left, entry, generation := 0, 0.0, false, 0
	for events[0].at < duration {
		e := heap.Pop(&events).(event)
		if e.generation >= 0 { // an age is over
			if e.generation == generation && entry {
				if left > 0 {
					calls++ // it goes back
				}
				left, entry = 0, false
			}
			continue
		}
		heap.Push(&events, event{e.at + random.ExpFloat64()/rate, -1})
		switch {
		case left > 0:
			left--
			continue
		case !entry: // the first takes no block
			entry = true
		default:
			left = block - 1
		}
		calls++
		generation++
		heap.Push(&events, event{e.at + age, generation})
	}
	return float64(calls) / duration
}

// event is a request, or the end of the age of a generation of blocks.
type event struct {
	at         float64
	generation int // -1 for a request
}

type queue []event

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}
