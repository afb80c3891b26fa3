package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// clear removes every QUOTA_ variable for the test's time.
func clear(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, Prefix+"_") {
			t.Setenv(name, value) // puts it back afterwards
			_ = os.Unsetenv(name)
		}
	}
	for _, name := range Names() { // what an env file sets must go again
		if _, set := os.LookupEnv(name); !set {
			t.Setenv(name, "")
			_ = os.Unsetenv(name)
		}
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNames(t *testing.T) {
	names := Names()
	for _, want := range []string{"QUOTA_STORE", "QUOTA_REDIS_PASSWORD_FILE", "QUOTA_REDIS_TLS_CA_FILE", "QUOTA_LISTEN_ADDRESS"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %v", want, names)
		}
	}
	if fields := reflect.TypeFor[Settings]().NumField(); len(names) != fields {
		t.Errorf("%d names for %d fields: %v", len(names), fields, names)
	}
}

func TestDefaults(t *testing.T) {
	clear(t)
	s, strange, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	if len(strange) != 0 {
		t.Errorf("strange names %v", strange)
	}
	if c := s.Connection(); c.String() != "redis://127.0.0.1:6379/0" || c.DialTimeout != time.Second {
		t.Errorf("connection %v, dial timeout %v", c, c.DialTimeout)
	}
	if s.Store != "redis" || s.Namespace != "quota" || s.ListenAddress != "" || s.Level().String() != "INFO" {
		t.Errorf("got\n%v", s)
	}
}

func TestEnvironmentOverFileAndSecretFile(t *testing.T) {
	clear(t)
	secret := write(t, "s3cret\n")
	file := write(t, "# comment\nQUOTA_REDIS_ADDRESS=file:1\nQUOTA_REDIS_DATABASE=3\nQUOTA_REDIS_PASSWORD_FILE="+secret+"\nQUOTA_LOG_LEVEL=debug\n")
	t.Setenv("QUOTA_REDIS_ADDRESS", "env:2")
	t.Setenv("QUOTA_REDIS_SERVICE_PORT_6379_TCP", "as Kubernetes does")
	s, strange, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if s.RedisAddress != "env:2" || s.RedisDatabase != 3 || s.RedisPassword != "s3cret" || s.LogLevel != "debug" {
		t.Errorf("got\n%v", s)
	}
	if !slices.Equal(strange, []string{"QUOTA_REDIS_SERVICE_PORT_6379_TCP"}) {
		t.Errorf("strange names %v", strange)
	}
}

func TestTopologies(t *testing.T) {
	password := write(t, "sentinels' own\n")
	for want, env := range map[string]map[string]string{
		"redis+cluster://a:1,b:2/":          {"ADDRESS": "a:1,b:2", "CLUSTER": "true"},
		"redis+sentinel://u@a:1, b:2/one/3": {"ADDRESS": "a:1, b:2", "SENTINEL_MASTER": "one", "USERNAME": "u", "DATABASE": "3", "SENTINEL_PASSWORD_FILE": password},
	} {
		clear(t)
		for k, v := range env {
			t.Setenv("QUOTA_REDIS_"+k, v)
		}
		s, _, err := Load("")
		if err != nil {
			t.Fatal(err)
		}
		c := s.Connection()
		if c.String() != want || (c.SentinelPassword == "sentinels' own") != (env["SENTINEL_PASSWORD_FILE"] != "") {
			t.Errorf("got %v %q, want %s", c, c.SentinelPassword, want)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	clear(t)
	t.Setenv("QUOTA_REDIS_PASSWORD", "s3cret")
	t.Setenv("QUOTA_REDIS_SENTINEL_MASTER", "m")
	t.Setenv("QUOTA_REDIS_SENTINEL_PASSWORD", "s3cret too")
	s, _, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{s.String(), fmt.Sprintf("%v", s), fmt.Sprintf("%+v", s.Connection()), fmt.Sprintf("%#v", s.Connection()), fmt.Sprint(s.Connection())} {
		if strings.Contains(text, "s3cret") {
			t.Errorf("printed: %s", text)
		}
	}
}

func TestBadSettings(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"store":     {map[string]string{"STORE": "etcd"}, `QUOTA_STORE: "etcd" must be redis or memory`},
		"entries":   {map[string]string{"MEMORY_ENTRIES": "0"}, `QUOTA_MEMORY_ENTRIES: 0 must be at least 1`},
		"namespace": {map[string]string{"NAMESPACE": "a{b"}, `QUOTA_NAMESPACE: "a{b" must be a word without braces and spaces`},
		"address":   {map[string]string{"REDIS_ADDRESS": "redis"}, `QUOTA_REDIS_ADDRESS: "redis" must be host:port`},
		"port":      {map[string]string{"REDIS_ADDRESS": "redis:70000"}, `QUOTA_REDIS_ADDRESS: "redis:70000" must be host:port with a port from 0 to 65535`},
		"number":    {map[string]string{"REDIS_DATABASE": "one"}, `QUOTA_REDIS_DATABASE: "one" must be a whole number`},
		"negative":  {map[string]string{"REDIS_DATABASE": "-1"}, `QUOTA_REDIS_DATABASE: -1 must not be negative`},
		"bool":      {map[string]string{"REDIS_TLS": "maybe"}, `QUOTA_REDIS_TLS: "maybe" must be true or false`},
		"duration":  {map[string]string{"REDIS_DIAL_TIMEOUT": "100"}, `QUOTA_REDIS_DIAL_TIMEOUT: "100" must be a duration such as 100ms`},
		"timeout":   {map[string]string{"REDIS_READ_TIMEOUT": "-1s"}, `QUOTA_REDIS_READ_TIMEOUT: "-1s" must be positive`},
		"pair":      {map[string]string{"REDIS_TLS_CERT_FILE": "c.pem"}, `QUOTA_REDIS_TLS_CERT_FILE: "c.pem" and QUOTA_REDIS_TLS_KEY_FILE go together`},
		"listen":    {map[string]string{"LISTEN_ADDRESS": "9100"}, `QUOTA_LISTEN_ADDRESS: "9100" must be host:port`},
		"level":     {map[string]string{"LOG_LEVEL": "loud"}, `QUOTA_LOG_LEVEL: "loud" must be debug, info, warn or error`},
		"secret":    {map[string]string{"REDIS_PASSWORD_FILE": "/nowhere"}, `QUOTA_REDIS_PASSWORD_FILE: open /nowhere: no such file or directory`},
		"both": {map[string]string{"REDIS_PASSWORD_FILE": "/dev/null", "REDIS_PASSWORD": "p"},
			`QUOTA_REDIS_PASSWORD_FILE: "/dev/null" and QUOTA_REDIS_PASSWORD exclude each other`},
		"several": {map[string]string{"REDIS_ADDRESS": "a:1,b:1"},
			`QUOTA_REDIS_ADDRESS: "a:1,b:1" must be one address without QUOTA_REDIS_CLUSTER and QUOTA_REDIS_SENTINEL_MASTER`},
		"one of several": {map[string]string{"REDIS_ADDRESS": "a:1,b", "REDIS_CLUSTER": "true"}, `QUOTA_REDIS_ADDRESS: "a:1,b" must be host:port`},
		"two topologies": {map[string]string{"REDIS_CLUSTER": "true", "REDIS_SENTINEL_MASTER": "m"},
			`QUOTA_REDIS_SENTINEL_MASTER: "m" and QUOTA_REDIS_CLUSTER exclude each other`},
		"cluster's database": {map[string]string{"REDIS_CLUSTER": "true", "REDIS_DATABASE": "1"},
			`QUOTA_REDIS_DATABASE: 1 must be 0 on a Redis Cluster, which has no other`},
		"no sentinels": {map[string]string{"REDIS_SENTINEL_USERNAME": "u", "REDIS_SENTINEL_PASSWORD": "s3cret"},
			"QUOTA_REDIS_SENTINEL_PASSWORD: \"(hidden)\" needs QUOTA_REDIS_SENTINEL_MASTER\nQUOTA_REDIS_SENTINEL_USERNAME: \"u\" needs QUOTA_REDIS_SENTINEL_MASTER"},
		"all together": {map[string]string{"STORE": "etcd", "LOG_LEVEL": "loud"},
			"QUOTA_LOG_LEVEL: \"loud\" must be debug, info, warn or error\nQUOTA_STORE: \"etcd\" must be redis or memory"},
	} {
		t.Run(name, func(t *testing.T) {
			clear(t)
			for k, v := range c.env {
				t.Setenv(Prefix+"_"+k, v)
			}
			if _, _, err := Load(""); err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestBadEnvFiles(t *testing.T) {
	clear(t)
	typo := write(t, "QUOTA_REDIS_ADRESS=x:1\nREDIS=1\n")
	want := "env file " + typo + ": QUOTA_REDIS_ADRESS is no setting; see docs/CONFIGURATION.md\nenv file " + typo + ": REDIS is no setting; see docs/CONFIGURATION.md"
	if _, _, err := Load(typo); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if _, _, err := Load("/nowhere"); err == nil || !strings.HasPrefix(err.Error(), "env file /nowhere: ") {
		t.Errorf("got %v", err)
	}
}
