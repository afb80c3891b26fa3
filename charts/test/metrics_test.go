package test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"

	"kong-quota/internal/settings"
	"kong-quota/plugin"
)

// exposed are the names of the samples that the plugin server serves.
func exposed(t *testing.T) map[string]bool {
	t.Helper()
	p, err := plugin.New(settings.Settings{Store: "memory", MemoryEntries: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, line := range strings.Split(string(text), "\n") {
		if name, _, sample := strings.Cut(line, " "); sample && name != "#" {
			name, _, _ = strings.Cut(name, "{")
			names[name] = true
		}
	}
	return names
}

// TestQueries parses what the alerts and the dashboard ask of Prometheus, as Prometheus
// does, and finds each metric among those of the plugin server.
func TestQueries(t *testing.T) {
	queries := map[string]string{}
	for name, values := range matrix(t) {
		for _, object := range objects(t, manifest(t, values)) {
			if rules, ok := object.(*monitoring.PrometheusRule); ok {
				for _, rule := range rules.Spec.Groups[0].Rules {
					queries[name+", alert "+rule.Alert] = rule.Expr.String()
				}
			}
		}
	}
	alerts := len(queries)
	text, err := os.ReadFile(chart + "/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries["panel "+panel.Title+" "+target.Expr] = strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
		}
	}
	if alerts < 8 || len(queries) < alerts+8 {
		t.Fatalf("%d alerts, %d queries", alerts, len(queries))
	}
	known := exposed(t)
	for where, query := range queries {
		expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v in %s", where, err, query)
			continue
		}
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			if selector, ok := node.(*parser.VectorSelector); ok && !known[selector.Name] {
				t.Errorf("%s: there is no %s", where, selector.Name)
			}
			return nil
		})
	}
}
