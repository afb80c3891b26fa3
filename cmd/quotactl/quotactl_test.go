package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kong-quota/internal/kongconfig"
	"kong-quota/internal/refused"
	"kong-quota/internal/testredis"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

// ctl runs quotactl.
func ctl(t testing.TB, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(context.Background(), args, strings.NewReader(stdin), &out, &errs)
	return status, out.String(), errs.String()
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What the Admin API or the start of an instance refuses, lint finds.
func TestLintFindsWhatIsRefused(t *testing.T) {
	for _, c := range refused.Configs(t) {
		kong := write(t, "kong.yml", fmt.Sprintf(`{"_format_version":"3.0","plugins":[{"name":"quota","config":%s}]}`, c.Config))
		status, stdout, stderr := ctl(t, "", "lint", kong)
		if status != 1 || !strings.HasPrefix(stdout, kong+":") || !strings.Contains(stdout, "plugins[1].config") {
			t.Errorf("%s: status %d, %s%s", c.File, status, stdout, stderr)
		}
	}
}

func TestLint(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"good": {"- { name: quota, config: { limits: [ { name: a, limit: 1, window: hour } ] } }", ""},
		"schema": {`- name: quota
  config:
    limits:
    - { name: a, limit: 1, window: hour }
    - name: b
      limit: 0
      window: hour
    erorr_code: 5
`, `8: plugins[1].config.limits[2].limit: value should be between 1 and 1000000000000
10: plugins[1].config.erorr_code: unknown field`},
		"start": {`- name: quota
  config:
    limits:
    - name: a
      limit: 1
      window: fortnight
`, `8: plugins[1].config.limits[1].window: "fortnight" must be a calendar unit (second, minute, hour, day, week, month, year) or a duration such as 90s, 15m, 1h30m or 30d`},
		"disagreement": {`- { name: quota, service: s, config: { scope: x, limits: [ { name: a, limit: 1, window: hour } ] } }
- { name: quota, service: t, config: { scope: x, limits: [ { name: b, limit: 1, window: day }, { name: a, limit: 1, window: day } ] } }
- { name: quota, route: r, config: { scope: x, limits: [ { name: a, limit: 7, window: hour } ] } }
- { name: quota, service: s, consumer: alice, config: { scope: x, limits: [ { name: a, limit: 1, window: week } ] } }
`, `4: plugins[2].config.limits[2]: limit "a" counts in the same place as that of F:3: plugins[1].config.limits[1], but differs in algorithm, window or alignment: each request to one restarts the counter of the other`},
	} {
		file := write(t, "kong.yml", "_format_version: \"3.0\"\nplugins:\n"+c.text+`
services:
- { name: s, url: "http://u", routes: [ { name: r, paths: [/] } ] }
- { name: t, url: "http://u" }
consumers: [ { username: alice } ]
`)
		status, stdout, _ := ctl(t, "", "lint", file)
		var want strings.Builder
		for line := range strings.SplitSeq(c.want, "\n") {
			if line != "" {
				want.WriteString("F:" + line + "\n")
			}
		}
		if got := strings.ReplaceAll(stdout, file, "F"); got != want.String() || (status == 1) != (c.want != "") {
			t.Errorf("%s: status %d\ngot  %s\nwant %s", name, status, got, want.String())
		}
	}
	noted := write(t, "plugin.yaml", "kind: KongPlugin\napiVersion: configuration.konghq.com/v1\nplugin: quota\nmetadata: { name: n }\nconfigFrom: { secretKeyRef: { name: s, key: k } }")
	if status, stdout, _ := ctl(t, "", "lint", noted); status != 0 || !strings.Contains(stdout, ": note: configFrom: ") {
		t.Errorf("a Secret of the cluster: status %d, %s", status, stdout)
	}
	// What a vault holds nobody knows here: neither that it is empty.
	vault := write(t, "kong.yml", `_format_version: "3.0"
plugins:
- { name: quota, config: { limits: [ { name: a, limit: 1, window: day } ], redis: { host: r, port: 6379, username: u, password: "{vault://env/p}" } } }
`)
	if status, stdout, _ := ctl(t, "", "lint", vault); status != 0 {
		t.Errorf("a password in a vault: %s", stdout)
	}
	// Services without a name are not the same service.
	nameless := write(t, "kong.yml", `_format_version: "3.0"
services:
- { url: "http://u", plugins: [ { name: quota, config: { limits: [ { name: a, limit: 1, window: hour } ] } } ] }
- { url: "http://u", plugins: [ { name: quota, config: { limits: [ { name: a, limit: 1, window: day } ] } } ] }
`)
	if status, stdout, _ := ctl(t, "", "lint", nameless); status != 0 {
		t.Errorf("services without a name: %s", stdout)
	}
	if status, _, stderr := ctl(t, "", "lint", "../../kong.yml", "../../charts/kong-quota/examples/kongplugin.yaml", "../../charts/kong-quota/examples/kongclusterplugin.yaml", "../../charts/kong-quota/examples/redis-password.yaml"); status != 0 {
		t.Errorf("the project's own examples: status %d, %s", status, stderr)
	}
}

const kong = `_format_version: "3.0"
services:
- name: sms
  url: http://up
  routes: [ { name: bulk, paths: [/bulk], plugins: [ { name: quota, config: { identify: [ip], limits: [ { name: hour, limit: 100, window: hour } ] } } ] } ]
  plugins:
  - name: quota
    config:
      redis: { password: "{vault://env/redis-password}" } # which is the process' own here
      limits:
      - { name: daily, limit: 5, window: day }
      - { name: second, algorithm: gcra, limit: 10, window: second, burst: 20 }
      - { name: all, limit: 1000, window: day, identify: [service] }
consumers: [ { username: alice, custom_id: c-1 }, { username: bob } ]
plugins:
- { name: quota, service: sms, consumer: alice, config: { limits: [ { name: daily, limit: 50, window: day } ] } }
- { name: quota, route: bulk, consumer: alice, config: { identify: [header], header_name: X-Phone, limits: [ { name: codes, limit: 3, window: day } ] } }
- { name: quota, service: sms, consumer: bob, enabled: false, config: { limits: [ { name: daily, limit: 70, window: day } ] } }
`

// counters is a Redis in which alice and others have used something.
func counters(t *testing.T) (file string) {
	t.Helper()
	server := testredis.Start(t, "--requirepass", "s3cret")
	t.Setenv("QUOTA_REDIS_ADDRESS", server.Address())
	t.Setenv("QUOTA_REDIS_PASSWORD", "s3cret")
	client, err := redisstore.Connect(redisstore.Connection{Address: server.Address(), Password: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	store := redisstore.New(client)
	sms, bulk := "service:"+kongconfig.ID("services", "sms"), "route:"+kongconfig.ID("routes", "bulk")
	day, _ := quota.ParseWindow("day")
	hour, _ := quota.ParseWindow("hour")
	spend := func(scope, kind, value, limit string, window quota.Window, capacity, cost int64) {
		t.Helper()
		policy, err := quota.NewPolicy(quota.Limit{Name: limit, Limit: capacity, Window: window})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := quota.NewLimiter(store, scope, policy).Spend(t.Context(), quota.NewIdentity(kind, value), cost); err != nil || d.State == quota.OverQuota {
			t.Fatal(d, err)
		}
	}
	spend(sms, "consumer", kongconfig.ID("consumers", "alice"), "daily", day, 50, 10)
	spend(sms, "consumer", kongconfig.ID("consumers", "bob"), "daily", day, 5, 4)
	spend(sms, "ip", "10.0.0.7", "daily", day, 5, 1)
	spend(sms, "service", kongconfig.ID("services", "sms"), "all", day, 1000, 15)
	spend(bulk, "ip", "10.0.0.7", "hour", hour, 100, 30)
	spend("service:another", "consumer", "x", "daily", day, 5, 5)
	return write(t, "kong.yml", kong)
}

// table gives the lines of a table without what depends on the time.
func table(text string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		fields := strings.Fields(line)
		if at := strings.LastIndex(line, "  "); at > 0 {
			fields = strings.Fields(line[:at])
		}
		lines = append(lines, strings.Join(fields, " "))
	}
	return strings.Join(lines, "\n")
}

func TestUsage(t *testing.T) {
	file := counters(t)
	const head = "WHO WHERE LIMIT USED OF REMAINING\n"
	for args, want := range map[string]string{
		"alice":                           "alice service sms daily 10 50 40",
		"c-1":                             "alice service sms daily 10 50 40",
		"consumer:alice":                  "alice service sms daily 10 50 40",
		"bob":                             "bob service sms daily 4 5 1\nbob service sms second 0 20 20",
		"ip:10.0.0.7":                     "ip:10.0.0.7 service sms daily 1 5 4\nip:10.0.0.7 service sms second 0 20 20\nip:10.0.0.7 route bulk hour 30 100 70\nip:10.0.0.7 route bulk codes 0 3 3",
		"ip:10.0.0.7 --route bulk":        "ip:10.0.0.7 route bulk hour 30 100 70\nip:10.0.0.7 route bulk codes 0 3 3",
		"ip:10.0.0.7 alice --service sms": "ip:10.0.0.7 service sms daily 1 5 4\nip:10.0.0.7 service sms second 0 20 20\nalice service sms daily 10 50 40",
		"header:+86":                      "header:%2B86 route bulk codes 0 3 3",
		"service:sms":                     "service:sms service sms all 15 1000 985",
		"":                                "bob service sms daily 4 5 1\nip:10.0.0.7 route bulk hour 30 100 70\nalice service sms daily 10 50 40\nip:10.0.0.7 service sms daily 1 5 4\nservice:sms service sms all 15 1000 985",
		"--top 2":                         "bob service sms daily 4 5 1\nip:10.0.0.7 route bulk hour 30 100 70",
	} {
		status, stdout, stderr := ctl(t, "", append([]string{"usage", "-f", file}, strings.Fields(args)...)...)
		if got := table(stdout); status != 0 || got != head+want {
			t.Errorf("usage %s: status %d %s\ngot\n%s\nwant\n%s", args, status, stderr, got, head+want)
		}
	}
	_, stdout, _ := ctl(t, "", "usage", "-f", file, "-o", "json", "bob")
	var rows []row
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%v in %s", err, stdout)
	}
	in := time.Until(*rows[0].FullAt)
	if r := rows[0]; r.Identity != "consumer:"+kongconfig.ID("consumers", "bob") || r.Remaining != 1 || in < 23*time.Hour || in > 24*time.Hour+time.Second || rows[1].FullAt != nil {
		t.Errorf("got %s", stdout)
	}
}

func TestReset(t *testing.T) {
	file := counters(t)
	status, stdout, stderr := ctl(t, "", "reset", "-f", file, "ip:10.0.0.7", "--service", "sms")
	if status != 0 || !strings.Contains(stdout, "Reset. Before it was:") || !strings.Contains(table(stdout), "ip:10.0.0.7 service sms daily 1 5 4") {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
	for args, want := range map[string]string{"ip:10.0.0.7 --service sms": "daily 0 5 5", "ip:10.0.0.7 --route bulk": "hour 30 100 70", "bob": "daily 4 5 1"} {
		if _, stdout, _ := ctl(t, "", append([]string{"usage", "-f", file}, strings.Fields(args)...)...); !strings.Contains(table(stdout), want) {
			t.Errorf("%s after the reset: %s", args, stdout)
		}
	}
}

func TestGrant(t *testing.T) {
	file := counters(t)
	for _, c := range []struct{ args, want string }{
		{"bob --units 3 --limit daily", "bob, service sms, daily: 4 of 5 remain, before it were 1\n"},
		{"bob --units 3", "bob, service sms, daily: 5 of 5 remain, before it were 4\nbob, service sms, second: 20 of 20 remain, before it were 20\n"},
		{"alice --units 1", "alice, service sms, daily: 41 of 50 remain, before it were 40\n"},
	} {
		status, stdout, stderr := ctl(t, "", append([]string{"grant", "-f", file}, strings.Fields(c.args)...)...)
		if status != 0 || stdout != c.want {
			t.Errorf("grant %s: status %d, %s%s, want %s", c.args, status, stdout, stderr, c.want)
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	t.Setenv("QUOTA_REDIS_ADDRESS", "127.0.0.1:1")
	t.Setenv("QUOTA_REDIS_PASSWORD", "s3cret")
	file := write(t, "kong.yml", kong)
	nameless := write(t, "kong.yml", "_format_version: \"3.0\"\nservices: [ { url: \"http://u\", plugins: [ { name: quota, config: { limits: [ { name: a, limit: 1, window: day } ] } } ] } ]")
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"nonsense", 2, `unknown command "nonsense" for "quotactl"`},
		{"usage --nonsense", 2, "unknown flag: --nonsense"},
		{"lint", 2, "requires at least 1 arg(s), only received 0"},
		{"lint /nowhere", 1, "open /nowhere: no such file or directory"},
		{"usage alice", 1, "say where the limits are: --admin URL or --file kong.yml"},
		{"usage -f x --admin y alice", 2, "if any flags in the group [file admin] are set none of the others can be"},
		{"usage -f " + file + " carol", 1, `consumer "carol" is in none of the files: unknown`},
		{"usage -f " + file + " phone:1", 1, `"phone:1": "phone" is none of consumer, credential, ip, header, service, route, global`},
		{"usage -f " + file + " ip:", 1, `"ip:": say which ip`},
		{"usage -f " + file + " credential:x", 1, "no limit counts credential:x"},
		{"usage -f " + file + " -o xml", 1, `--output: "xml" must be table or json`},
		{"usage -f " + file + " --top 0", 1, `--top: 0 must be at least 1`},
		{"usage -f " + file + " --service none alice", 1, "no configuration of quota is there, or none of what was asked for"},
		{"usage -f " + file + " alice", 1, "connection refused"},
		{"usage -f " + file, 1, "connection refused"},
		{"usage -f " + nameless, 1, "only the running Kong knows the id of what this is on: use --admin"},
		{"usage -f ../../charts/kong-quota/examples/kongplugin.yaml alice", 1, "only the running Kong knows the id of what this is on: use --admin"},
		{"usage --admin http://127.0.0.1:1 alice", 1, "admin API: Get \"http://127.0.0.1:1/plugins?size=1000\": dial tcp 127.0.0.1:1: connect: connection refused"},
		{"usage --admin http://127.0.0.1:1 --admin-header x alice", 1, `--admin-header: "x" must be "Name: value"`},
		{"grant -f " + file + " alice", 2, `required flag(s) "units" not set`},
		{"grant -f " + file + " alice --units 0", 1, "--units: 0 must be between 1 and"},
		{"grant -f " + file + " alice --units 1 --limit none", 1, "no such limit counts consumer:"},
		{"simulate", 1, "say where the limits are"},
		{"simulate -f " + file + " --rate 1/s", 1, "there are several configurations, choose one with --service or --route"},
		{"simulate --limit {name:a} --rate 1/s", 1, "--limit"},
		{"simulate --limit {} --rate 1/s", 1, "command line: --limit.config.limits[1].limit: required field missing"},
		{"simulate --limit {name:\x20a,limit:\x201,window:\x20day}", 1, "say what to try: a trace (- for standard input), or --rate"},
		{"simulate --limit {name:\x20a,limit:\x201,window:\x20day} --rate 1/d", 1, `--rate: "1/d" must be a number per s, m or h, such as 15/s`},
		{"simulate --limit {name:\x20a,limit:\x201,window:\x20day} --rate 1/s --for x", 1, `--for: "x" must be a duration such as 10m`},
		{"simulate --limit {name:\x20a,limit:\x201,window:\x20day} --rate 1/s --callers 0", 1, `--callers: 0 must be at least 1`},
		{"simulate --limit {name:\x20a,limit:\x201,window:\x20day} --format xml -", 1, `--format: "xml" must be trace or access-log`},
		{"simulate --limit {name:\x20a,limit:\x201,window:\x20day} --rate 1/s -", 1, `--rate and a trace exclude each other`},
		{"simulate --limit {name:\x20a,limit:\x201,window:\x20day} /nowhere", 1, "open /nowhere: no such file or directory"},
	} {
		args := strings.Split(c.args, " ")
		for i := range args { // a space inside of an argument
			args[i] = strings.ReplaceAll(args[i], ":\x20", ": ")
		}
		if strings.Contains(c.args, "{name:\x20a,") {
			args = append([]string{"simulate", "--limit", "{name: a, limit: 1, window: day}"}, strings.Fields(c.args[strings.Index(c.args, "}")+1:])...)
		}
		status, stdout, stderr := ctl(t, "", args...)
		if status != c.status || !strings.Contains(stderr, c.want) || strings.Contains(stdout+stderr, "s3cret") {
			t.Errorf("%s: status %d, want %d\ngot  %s%s\nwant %s", c.args, status, c.status, stdout, stderr, c.want)
		}
	}
}

func TestCompound(t *testing.T) {
	for text, want := range map[string]string{
		"alice": "alice", "alice+ip:10.0.0.7": "alice|ip:10.0.0.7", "header:+8613800000000": "header:+8613800000000",
		"header:+86+consumer:a+b": "header:+86|consumer:a+b", "a+phone:1": "a+phone:1", "": "", "+": "+",
	} {
		if got := strings.Join(compound(text), "|"); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}

// The Admin API of Kong's ingress chart asks for a client certificate.
func TestAdminTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"data":[],"next":null}`))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	own := server.TLS.Certificates[0] // serves as the client's, too
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := write(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})))
	keyFile := write(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	const reached = "no configuration of quota is there"
	for args, want := range map[string]string{
		"":                      "certificate signed by unknown authority",
		"--admin-ca " + cert:    "tls: ",
		"--admin-ca " + keyFile: "has no PEM certificate",
		"--admin-ca /nowhere":   "--admin-ca: open /nowhere",
		"--admin-ca " + cert + " --admin-cert " + cert + " --admin-key " + keyFile: reached,
		"--admin-skip-verify --admin-cert " + cert + " --admin-key " + keyFile:     reached,
		"--admin-skip-verify --admin-cert " + keyFile + " --admin-key " + keyFile:  "--admin-cert, --admin-key: ",
		"--admin-skip-verify --admin-cert " + cert:                                 "they must all be set",
	} {
		status, stdout, stderr := ctl(t, "", append([]string{"usage", "--admin", server.URL}, strings.Fields(args)...)...)
		if status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %s%s, want %s", args, status, stdout, stderr, want)
		}
	}
}

func TestMemoryIsNobodyElses(t *testing.T) {
	t.Setenv("QUOTA_STORE", "memory")
	if status, _, stderr := ctl(t, "", "usage", "-f", write(t, "kong.yml", kong), "alice"); status != 1 || !strings.Contains(stderr, `QUOTA_STORE: "memory": nobody else sees`) {
		t.Errorf("status %d, %s", status, stderr)
	}
}

func TestSimulate(t *testing.T) {
	const minute = "{name: minute, limit: 2, window: minute}"
	trace := `
1795253400 alice
1795253410.5 alice

2026-11-21T09:30:20Z alice 2
1795253430 bob 2
1795253461 alice 0
1795253461 alice
`
	status, stdout, stderr := ctl(t, trace, "simulate", "--limit", minute, "--each", "-")
	want := `2026-11-21T09:30:00.000000Z alice 1 allowed minute=1/2
2026-11-21T09:30:10.500000Z alice 1 hit_quota minute=0/2
2026-11-21T09:30:20.000000Z alice 2 over_quota minute=0/2 retry=40s
2026-11-21T09:30:30.000000Z bob 2 hit_quota minute=0/2
2026-11-21T09:31:01.000000Z alice 0 allowed minute=2/2
2026-11-21T09:31:01.000000Z alice 1 allowed minute=1/2
6 requests of 2 callers, 2026-11-21T09:30:00Z to 2026-11-21T09:31:01Z
passed       5  83.3 %
refused      1  16.7 %
  by minute  1  16.7 %

passed   `
	if status != 0 || !strings.HasPrefix(stdout, want) || !strings.HasSuffix(stdout, "MOST REFUSED  REQUESTS  PASSED  REFUSED\nalice         5         4       1\n") {
		t.Errorf("status %d, %s\ngot\n%s\nwant\n%s", status, stderr, stdout, want)
	}

	log := `10.0.0.7 - - [21/Nov/2026:09:30:00 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"
10.0.0.7 - alice [21/Nov/2026:17:30:01 +0800] "GET / HTTP/1.1" 200 5 "-" "curl"
::1 - - [21/Nov/2026:09:30:02 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"
10.0.0.7 - - [21/Nov/2026:09:30:03 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"
`
	if status, stdout, stderr := ctl(t, "", "simulate", "--limit", minute, "--format", "access-log", write(t, "access.log", log)); status != 0 ||
		!strings.HasPrefix(stdout, "4 requests of 2 callers, 2026-11-21T09:30:00Z to 2026-11-21T09:30:03Z\npassed       3  75.0 %\nrefused      1  25.0 %\n") {
		t.Errorf("access log: status %d, %s%s", status, stdout, stderr)
	}

	// 10 a second with a burst of 20, of 15 a second for a minute: 20 + 10 × 59.93 pass.
	if status, stdout, stderr := ctl(t, "", "simulate", "--limit", "{name: s, algorithm: gcra, limit: 10, window: second, burst: 20}", "--rate", "15/s", "--callers", "3"); status != 0 ||
		!strings.HasPrefix(stdout, "2700 requests of 3 callers, 2026-01-01T00:00:00Z to 2026-01-01T00:00:59Z\npassed   1857  68.8 %\nrefused  843   31.2 %\n") {
		t.Errorf("made up: status %d, %s%s", status, stdout, stderr)
	}

	// Two limits, one of which is the service's.
	if status, stdout, stderr := ctl(t, "", "simulate", "-f", write(t, "kong.yml", strings.Split(kong, "plugins:\n- { name: quota, service: sms, consumer")[0]), "--service", "sms", "--rate", "1/s", "--for", "8s", "--callers", "300"); status != 0 ||
		!strings.HasPrefix(stdout, "2400 requests of 300 callers, 2026-01-01T00:00:00Z to 2026-01-01T00:00:07Z\npassed    1000  41.7 %\nrefused   1400  58.3 %\n  by all  1400  58.3 %\n") {
		t.Errorf("limits of a service: status %d, %s%s", status, stdout, stderr)
	}

	// A limit of the service alone is everybody's.
	shared := write(t, "kong.yml", `{"_format_version":"3.0","services":[{"name":"s","plugins":[{"name":"quota","config":{"identify":["service"],"limits":[{"name":"all","limit":10,"window":"hour"}]}}]}]}`)
	if _, stdout, stderr := ctl(t, "", "simulate", "-f", shared, "--rate", "1/s", "--for", "5s", "--callers", "4"); !strings.HasPrefix(stdout, "20 requests of 4 callers, 2026-01-01T00:00:00Z to 2026-01-01T00:00:04Z\npassed    10  50.0 %\n") {
		t.Errorf("a shared limit: %s%s", stdout, stderr)
	}

	// Where the plugin counts the service, another limit may count the callers.
	both := write(t, "kong.yml", `{"_format_version":"3.0","services":[{"name":"s","plugins":[{"name":"quota","config":{"identify":["service"],"limits":[{"name":"all","limit":10,"window":"hour"},{"name":"own","limit":2,"window":"hour","identify":["ip"]}]}}]}]}`)
	t.Setenv("QUOTA_STORE", "memory") // which does not matter here
	if _, stdout, stderr := ctl(t, "", "simulate", "-f", both, "--rate", "1/s", "--for", "5s", "--callers", "4"); !strings.HasPrefix(stdout, "20 requests of 4 callers, 2026-01-01T00:00:00Z to 2026-01-01T00:00:04Z\npassed    8   40.0 %\n") {
		t.Errorf("a limit of callers: %s%s", stdout, stderr)
	}

	for text, want := range map[string]string{
		"x alice":                    `line 1: moment: "x" must be RFC 3339 or seconds since 1970`,
		"\n-5 alice":                 `line 2: moment: "-5" must be RFC 3339 or seconds since 1970`,
		"1795253400":                 `line 1: "1795253400" must be: moment, who, and perhaps a cost`,
		"1795253400 alice -1":        `line 1: cost: "-1" must be a number from 0 to`,
		"1795253400 a\n1795253399 a": `a request of 2026-11-21T09:29:59Z comes after one of 2026-11-21T09:30:00Z: sort the trace by time`,
	} {
		if status, _, stderr := ctl(t, text, "simulate", "--limit", minute, "-"); status != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%q: status %d, %s", text, status, stderr)
		}
	}
	if status, _, stderr := ctl(t, "GET / HTTP/1.1", "simulate", "--limit", minute, "--format", "access-log", "-"); status != 1 || !strings.Contains(stderr, "line 1: \"GET / HTTP/1.1\" is no line of an access log") {
		t.Errorf("status %d, %s", status, stderr)
	}
	if _, stdout, _ := ctl(t, "", "simulate", "--limit", minute, "-"); stdout != "There was no request.\n" {
		t.Errorf("got %s", stdout)
	}
}

// The README shows what is printed.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?s)\n    quotactl (simulate --rate [^\n]*)\n\n\x60{3}\n(.*?)\x60{3}\n`).FindSubmatch(text)
	if found == nil {
		t.Fatal("the README has no such example")
	}
	var args []string
	for i, part := range strings.Split(string(found[1]), "'") {
		if i%2 == 1 {
			args = append(args, part)
		} else {
			args = append(args, strings.Fields(part)...)
		}
	}
	if _, stdout, stderr := ctl(t, "", args...); stdout != string(found[2]) {
		t.Errorf("quotactl %q gives\n%s%s", args, stdout, stderr)
	}
}

func FuzzTraces(f *testing.F) {
	f.Add("1795253400.5 alice 2")
	f.Add("2026-11-21T09:30:20Z alice")
	f.Add(`10.0.0.7 - - [21/Nov/2026:09:30:00 +0000] "GET / HTTP/1.1" 200 5`)
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := readLine(text); err == nil && (r.who == "" || r.cost < 0 || r.cost > quota.MaxCost) {
			t.Errorf("%q: %+v", text, r)
		}
		_, _ = readAccessLog(text)
	})
}
