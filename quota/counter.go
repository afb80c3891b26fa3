package quota

import "time"

// Counter is what a store keeps for one limit of one identity. Redis holds the
// same as text, "shape until values…", in a field named like the limit.
type Counter struct {
	// Shape is the algorithm and a fingerprint of what the numbers depend on,
	// e.g. fixed_window.1f3a9c. A counter of another shape restarts its limit.
	Shape string
	// Until is the moment, in microseconds since the Unix epoch, from which the
	// counter says nothing that its absence would not say.
	Until int64
	// Values are the algorithm's own; its file says what they mean.
	Values []int64
}

// verdict is one limit's part of a decision, before it is known whether the
// others agree.
type verdict struct {
	before  Standing      // if nothing is charged
	after   Standing      // if the cost is charged
	charged Counter       // what to keep then
	wait    time.Duration // for which the request must wait if it passes
	restart bool          // the held counter could not be read
}

// algorithm decides for one limit. Times are microseconds.
type algorithm interface {
	// decide is pure: the held counter (the zero Counter if there is none), the
	// moment and the cost give the verdict.
	decide(held Counter, now, cost int64) verdict
	// arguments are what the algorithm's script needs beside name, shape and
	// limit; its header says what they mean. They hold for moments near now; those
	// that are the same again are the same slice, which must not be written to.
	arguments(now int64) []int64
	// capacity is how much the limit holds when nothing is used.
	capacity() int64
}
