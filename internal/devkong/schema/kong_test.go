package schema_test

import (
	"bytes"
	"encoding/json"

	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"kong-quota/internal/devkong/schema"
	"kong-quota/internal/refused"
	"kong-quota/plugin"
)

// said is what Kong's own code says.
type said struct {
	Schema      string
	Results     []any
	Declarative []any
}

// askKong runs Kong's own code over configurations of the plugin and whole declarative
// ones: see testdata/kong_schema.lua. KONG_SOURCE is the folder of Kong's Lua sources, of
// which some run outside of nginx: that needs luajit and Debian's lua-penlight and
// lua-cjson.
func askKong(t *testing.T, text []byte, configs []json.RawMessage, declarative ...any) (answer said) {
	t.Helper()
	source := os.Getenv("KONG_SOURCE")
	if source == "" {
		t.Skip("KONG_SOURCE names no folder with Kong's Lua sources")
	}
	in, err := json.Marshal(map[string]any{"schema": json.RawMessage(text), "name": plugin.Name, "configs": configs, "declarative": append([]any{}, declarative...)})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("luajit", "testdata/kong_schema.lua", source)
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if err := json.Unmarshal(bytes.ReplaceAll(out, []byte(`"declarative":{}`), []byte(`"declarative":[]`)), &answer); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if answer.Schema != "" {
		t.Fatalf("Kong does not take the schema: %s", answer.Schema)
	}
	if len(answer.Results) != len(configs) || len(answer.Declarative) != len(declarative) {
		t.Fatalf("%d and %d results for %d and %d configurations", len(answer.Results), len(answer.Declarative), len(configs), len(declarative))
	}
	return answer
}

// TestKongReads: the project's kong.yml, and what the chart has as an example, are
// declarative configurations to Kong.
func TestKongReads(t *testing.T) {
	text, err := json.Marshal(plugin.Schema())
	if err != nil {
		t.Fatal(err)
	}
	read := func(file string) (tree map[string]any) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(text, &tree)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tree
	}
	values := read("../../../charts/kong-quota/values.yaml")
	wrong := read("../../../kong.yml")
	wrong["plugins"].([]any)[0].(map[string]any)["config"].(map[string]any)["limits"] = []any{}
	configs := []json.RawMessage{[]byte(`{"limits":[{"name":"a","limit":1,"window":"hour"}]}`)}
	answer := askKong(t, text, configs, read("../../../kong.yml"), values["kong"].(map[string]any)["config"], wrong)
	for i, want := range []map[string]any{
		{"services": 2., "routes": 3., "consumers": 2., "plugins": 5., "keyauth_credentials": 2.},
		{"services": 1., "routes": 1., "plugins": 1.},
	} {
		if !reflect.DeepEqual(answer.Declarative[i], any(want)) {
			t.Errorf("configuration %d is %v to Kong, want %v", i+1, answer.Declarative[i], want)
		}
	}
	if problem, _ := answer.Declarative[2].(string); !strings.Contains(problem, "length must be at least 1") {
		t.Errorf("a bad one is %v to Kong", answer.Declarative[2])
	}
}

// TestKongItself holds devkong's schema language to Kong's: what each says of the
// configurations that must be refused, and of random ones.
func TestKongItself(t *testing.T) {
	text, err := json.Marshal(plugin.Schema())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := schema.ReadPlugin(text)
	if err != nil {
		t.Fatal(err)
	}
	var configs []json.RawMessage
	for _, c := range refused.Configs(t) {
		configs = append(configs, c.Config)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		config, err := json.Marshal(anyConfig(random))
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, config)
	}
	refused := 0
	for i, theirs := range askKong(t, text, configs).Results {
		var config any
		if err := json.Unmarshal(configs[i], &config); err != nil {
			t.Fatal(err)
		}
		said, errs := ours.Config.Validate(config)
		if errs != nil {
			said = schema.NewViolation(map[string]any{"config": errs}).Message
			refused++
		}
		if !reflect.DeepEqual(plain(t, said), plain(t, theirs)) {
			t.Fatalf("%s\ndevkong %v\nKong    %v", configs[i], said, theirs)
		}
	}
	if refused < len(configs)/4 || refused > len(configs)*3/4 {
		t.Errorf("%d of %d were refused: too few of one kind", refused, len(configs))
	}
	t.Logf("%d configurations, %d of them refused, all with the same words; the others with the same defaults", len(configs), refused)
}

// plain is a value as JSON has it; Lua does not tell an empty list from an empty table.
func plain(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var read any
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte("[]"), []byte("{}")), &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// anyConfig is a configuration of which a part may be wrong: the first of the values to
// choose from are good ones, and come more often.
func anyConfig(r *rand.Rand) map[string]any {
	oneOf := func(values ...any) any {
		if r.IntN(12) > 0 {
			return values[r.IntN((len(values)+1)/2)]
		}
		return values[r.IntN(len(values))]
	}
	number := func() any { return oneOf(1, 2, 5, 100, 1e12, 60, 0, -1, 1.5, 1e13, "1", true) }
	word := func() any { return oneOf("a", "ip", "header", "b", "c", "", "A b", 7, false) }
	window := func() any {
		return oneOf("second", "minute", "day", "week", "month", "1h30m", "90s", "fortnight", "", 60)
	}
	kinds := func() any {
		list := []any{}
		for range 1 + r.IntN(3) {
			list = append(list, oneOf("consumer", "ip", "service", "global", "route", "header", "phone", 5))
		}
		return oneOf(list, list, list, list, "consumer")
	}
	pick := func(fields map[string]func() any, most int) map[string]any {
		names := make([]string, 0, len(fields))
		for name := range fields {
			names = append(names, name)
		}
		// Maps have no order, and the same seed shall give the same.
		slices.Sort(names)
		table := map[string]any{}
		for range r.IntN(most + 1) {
			name := names[r.IntN(len(names))]
			table[name] = fields[name]()
		}
		return table
	}
	limit := func() any {
		table := pick(map[string]func() any{
			"algorithm": func() any { return oneOf("fixed_window", "gcra", "leaky_bucket", "sliding_window", "sliding_log", "x") },
			"burst":     number, "buckets": number, "align": func() any { return oneOf("calendar", "first_request", "x") },
			"timezone": func() any { return oneOf("Asia/Shanghai", "UTC", "", "../x", 1) }, "week_start": func() any { return oneOf("monday", "sunday", "mon") },
			"day_of_month": func() any { return oneOf(1, 31, 32, 0, "1") }, "on_limit": func() any { return oneOf("refuse", "refuse", "delay", "x") },
			"max_delay": func() any { return oneOf("500ms", "2s", "x", 5) }, "identify": kinds,
			"lease": func() any {
				return pick(map[string]func() any{"share": func() any { return oneOf(0, 0.01, 1, 1.5, "1") }, "max_age": func() any { return oneOf("1s", "x", 1) }, "unknown": number}, 3)
			},
		}, r.IntN(3))
		for _, f := range []struct {
			name  string
			value any
		}{{"name", oneOf("a", "b", "daily", "c", "d", "e", "B", "", "a b", 7)}, {"limit", number()}, {"window", window()}} {
			if r.IntN(40) > 0 {
				table[f.name] = f.value
			}
		}
		return table
	}
	config := pick(map[string]func() any{
		"identify": kinds, "header_name": func() any { return oneOf("X-Phone", "a b", "", 5) }, "fallback": func() any { return oneOf("ip", "deny", "skip", "x") }, "scope": func() any { return oneOf("sms", "a b", "", 9) },
		"mode": func() any { return oneOf("enforce", "annotate", "x") }, "headers": func() any { return oneOf("kong", "ietf", "both", "off", false) },
		"upstream_headers": func() any { return oneOf(true, false, "true") }, "error_code": func() any { return oneOf(429, 399, 600, "429") },
		"error_message": word, "grpc": func() any { return oneOf(true, 1) }, "on_error": func() any { return oneOf("allow", "deny", "x") }, "timeout": number,
		"redis": func() any {
			return pick(map[string]func() any{"host": func() any { return oneOf("r", "a b", 5) }, "port": func() any { return oneOf(6379, 0, 70000, "6379") }, "database": number, "ssl": func() any { return oneOf(true, "x") }, "password": word, "username": word, "server_name": word}, 4)
		},
	}, 2)
	if r.IntN(40) == 0 {
		config["unknown"] = number()
	}
	switch r.IntN(20) {
	case 0:
	case 1:
		config["limits"] = oneOf([]any{}, "x", map[string]any{"a": 1})
	default:
		list := []any{}
		for range 1 + r.IntN(2) {
			list = append(list, limit())
		}
		if r.IntN(40) == 0 {
			list = append(list, 5)
		}
		config["limits"] = list
	}
	return config
}
