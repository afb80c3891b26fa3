package plugin

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kong-quota/quota"
)

// metrics are those of the process. Labels never come from requests, so that
// their number is bounded.
type metrics struct {
	registry  *prometheus.Registry
	decisions map[quota.State]prometheus.Counter
	seconds   prometheus.Histogram
	restarted prometheus.Counter
	panics    prometheus.Counter
}

func newMetrics(waiters *quota.Waiters, stores *stores) *metrics {
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		decisions: map[quota.State]prometheus.Counter{},
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "quota_decision_seconds", Help: "Time to a decision of the store, or to its failure.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
		restarted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quota_restarted_counters_total", Help: "Counters that could not be read and began anew.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quota_panics_total", Help: "Requests whose access phase panicked and followed on_error.",
		}),
	}
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "quota_decisions_total", Help: "Decisions by state; unknown are those that the store gave no answer to.",
	}, []string{"state"})
	for _, s := range []quota.State{quota.Unknown, quota.Allowed, quota.HitQuota, quota.OverQuota} {
		m.decisions[s] = decisions.WithLabelValues(s.String())
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quota_waiting_requests", Help: "Requests that wait for their turn at a limit with on_limit delay.",
	}, func() float64 { return float64(waiters.Waiting()) })
	denied := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "quota_denied_locally_total", Help: "Requests refused by memory of a refusal, without asking Redis.",
	}, func() float64 { refused, _ := stores.local(); return float64(refused) })
	leased := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "quota_leased_total", Help: "Requests that passed by a lease, without asking Redis.",
	}, func() float64 { _, passed := stores.local(); return float64(passed) })
	m.registry.MustRegister(waiting, denied, leased, decisions, m.seconds, m.restarted, m.panics,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) decided(d quota.Decision, took time.Duration) {
	m.decisions[d.State].Inc()
	m.seconds.Observe(took.Seconds())
	if d.Restarted > 0 {
		m.restarted.Add(float64(d.Restarted))
	}
}

// Handler serves /metrics, /healthz (the process runs) and /readyz (the store of
// the process answers too).
func (p *Plugin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := p.Ready(r.Context()); err != nil {
			http.Error(w, "the store gives no answer", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}
