// Package settings reads the configuration of the plugin server's process from
// environment variables with the prefix QUOTA_, from a file of such variables,
// and from files that hold a secret each.
package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joho/godotenv"
	"github.com/kelseyhightower/envconfig"

	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

// Prefix begins the name of every variable.
const Prefix = "QUOTA"

// Settings are the process' own; the limits are in Kong's configuration. A
// plugin's redis record overrides the connection for its instance.
type Settings struct {
	Store         string `default:"redis" desc:"where the counters are: redis, or memory (in this process alone, gone when it ends)"`
	MemoryEntries int    `split_words:"true" default:"200000" desc:"identities that the memory store holds at most"`
	Namespace     string `default:"quota" desc:"first word of every key in Redis"`

	RedisAddress      string `split_words:"true" default:"127.0.0.1:6379" desc:"host:port of the Redis server; with a Cluster or Sentinels those of some of them, with commas between"`
	RedisUsername     string `split_words:"true" desc:"ACL user; empty for Redis' default user"`
	RedisPassword     string `split_words:"true" desc:"password of the user"`
	RedisPasswordFile string `split_words:"true" desc:"file that holds the password, instead of QUOTA_REDIS_PASSWORD"`
	RedisDatabase     int    `split_words:"true" default:"0" desc:"database number"`

	RedisCluster              bool   `split_words:"true" default:"false" desc:"the servers are a Redis Cluster"`
	RedisSentinelMaster       string `split_words:"true" desc:"name of the master that the Sentinels at QUOTA_REDIS_ADDRESS watch; empty without Sentinels"`
	RedisSentinelUsername     string `split_words:"true" desc:"ACL user on the Sentinels"`
	RedisSentinelPassword     string `split_words:"true" desc:"password on the Sentinels"`
	RedisSentinelPasswordFile string `split_words:"true" desc:"file that holds the password on the Sentinels, instead of QUOTA_REDIS_SENTINEL_PASSWORD"`

	RedisTLS           bool   `split_words:"true" default:"false" desc:"connect with TLS"`
	RedisTLSServerName string `split_words:"true" desc:"name to verify in the server's certificate; empty for the host of the address"`
	RedisTLSSkipVerify bool   `split_words:"true" default:"false" desc:"accept any certificate"`
	RedisTLSCaFile     string `split_words:"true" desc:"PEM file of certificate authorities; empty for the system's"`
	RedisTLSCertFile   string `split_words:"true" desc:"PEM file of the client certificate"`
	RedisTLSKeyFile    string `split_words:"true" desc:"PEM file of the client certificate's key"`

	RedisDialTimeout  time.Duration `split_words:"true" default:"1s" desc:"time for a connection attempt"`
	RedisReadTimeout  time.Duration `split_words:"true" default:"1s" desc:"time for a reply where no plugin's timeout is shorter"`
	RedisWriteTimeout time.Duration `split_words:"true" default:"1s" desc:"time to send a call where no plugin's timeout is shorter"`
	RedisPoolSize     int           `split_words:"true" default:"0" desc:"connections at most; 0 for ten per CPU"`

	DenyMemory        time.Duration `split_words:"true" default:"1s" desc:"how long a refusal is remembered at most, so that it is not asked of Redis again; resets on other nodes count then at the latest; 0 for never"`
	DenyMemoryEntries int           `split_words:"true" default:"100000" desc:"refusals that are remembered at most"`
	LeasedQuotas      int           `split_words:"true" default:"100000" desc:"leased quotas of which this node holds a part at most"`

	MaxWaiters int `split_words:"true" default:"1000" desc:"requests that wait at once for limits with on_limit delay; what is above is refused"`

	ListenAddress string `split_words:"true" desc:"host:port for /metrics, /healthz and /readyz; empty for none"`
	LogLevel      string `split_words:"true" default:"info" desc:"debug, info, warn or error; the log goes to standard error"`
}

// Load reads the environment and, if envFile is not empty, that file; where both
// have a variable the environment's counts. Names in the file that are no
// setting are an error. The strange names that it returns are those in the
// environment: no error, because Kubernetes puts variables there that are named
// after its services.
func Load(envFile string) (s Settings, strange []string, err error) {
	if envFile != "" {
		if err := readFile(envFile); err != nil {
			return Settings{}, nil, err
		}
	}
	if err := envconfig.Process(Prefix, &s); err != nil {
		return Settings{}, nil, explain(err)
	}
	if err := s.finish(); err != nil {
		return Settings{}, nil, err
	}
	known := Names()
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, Prefix+"_") && !slices.Contains(known, name) {
			strange = append(strange, name)
		}
	}
	slices.Sort(strange)
	return s, strange, nil
}

// Names are the names of all variables, in the order of Settings' fields, as
// envconfig makes them.
func Names() []string {
	var out strings.Builder
	if err := envconfig.Usagef(Prefix, &Settings{}, &out, "{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
		panic(err) // the template above and the type of Settings are constants
	}
	return strings.Fields(out.String())
}

func readFile(path string) error {
	values, err := godotenv.Read(path)
	if err != nil {
		return fmt.Errorf("env file %s: %w", path, err)
	}
	known := Names()
	var problems []error
	for name, value := range values {
		if !slices.Contains(known, name) {
			problems = append(problems, fmt.Errorf("env file %s: %s is no setting; see docs/CONFIGURATION.md", path, name))
			continue
		}
		if _, set := os.LookupEnv(name); !set {
			if err := os.Setenv(name, value); err != nil {
				problems = append(problems, fmt.Errorf("env file %s: %s: %w", path, name, err))
			}
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// explain turns envconfig's error into the project's form, without the value
// where the variable is a secret.
func explain(err error) error {
	var parse *envconfig.ParseError
	if !errors.As(err, &parse) {
		return err
	}
	rule := map[string]string{
		"int": "must be a whole number", "bool": "must be true or false", "time.Duration": "must be a duration such as 100ms",
	}[parse.TypeName]
	return &quota.FieldError{Field: parse.KeyName, Value: parse.Value, Rule: rule}
}

// finish checks what types do not, and reads the secret files.
func (s *Settings) finish() error {
	var problems []error
	refuse := func(name string, value any, rule string) {
		problems = append(problems, &quota.FieldError{Field: Prefix + "_" + name, Value: value, Rule: rule})
	}
	if s.Store != "redis" && s.Store != "memory" {
		refuse("STORE", s.Store, "must be redis or memory")
	}
	if s.MemoryEntries < 1 {
		refuse("MEMORY_ENTRIES", s.MemoryEntries, "must be at least 1")
	}
	if s.Namespace == "" || strings.ContainsAny(s.Namespace, "{} \t\r\n") {
		refuse("NAMESPACE", s.Namespace, "must be a word without braces and spaces")
	}
	s.finishTopology(refuse)
	if s.RedisDatabase < 0 {
		refuse("REDIS_DATABASE", s.RedisDatabase, "must not be negative")
	}
	if s.RedisPoolSize < 0 {
		refuse("REDIS_POOL_SIZE", s.RedisPoolSize, "must not be negative")
	}
	if s.DenyMemory < 0 {
		refuse("DENY_MEMORY", s.DenyMemory.String(), "must not be negative")
	}
	for name, n := range map[string]int{"DENY_MEMORY_ENTRIES": s.DenyMemoryEntries, "LEASED_QUOTAS": s.LeasedQuotas, "MAX_WAITERS": s.MaxWaiters} {
		if n < 0 {
			refuse(name, n, "must not be negative")
		}
	}
	for name, timeout := range map[string]time.Duration{
		"REDIS_DIAL_TIMEOUT": s.RedisDialTimeout, "REDIS_READ_TIMEOUT": s.RedisReadTimeout, "REDIS_WRITE_TIMEOUT": s.RedisWriteTimeout,
	} {
		if timeout <= 0 {
			refuse(name, timeout.String(), "must be positive")
		}
	}
	if (s.RedisTLSCertFile == "") != (s.RedisTLSKeyFile == "") {
		refuse("REDIS_TLS_CERT_FILE", s.RedisTLSCertFile, "and QUOTA_REDIS_TLS_KEY_FILE go together")
	}
	if s.ListenAddress != "" {
		if err := checkAddress(s.ListenAddress); err != nil {
			refuse("LISTEN_ADDRESS", s.ListenAddress, err.Error())
		}
	}
	if _, err := s.level(); err != nil {
		refuse("LOG_LEVEL", s.LogLevel, "must be debug, info, warn or error")
	}
	for _, secret := range []struct {
		name, file string
		value      *string
	}{
		{"REDIS_PASSWORD", s.RedisPasswordFile, &s.RedisPassword},
		{"REDIS_SENTINEL_PASSWORD", s.RedisSentinelPasswordFile, &s.RedisSentinelPassword},
	} {
		if secret.file == "" {
			continue
		}
		if *secret.value != "" {
			refuse(secret.name+"_FILE", secret.file, "and QUOTA_"+secret.name+" exclude each other")
		}
		text, err := os.ReadFile(secret.file)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s_%s_FILE: %w", Prefix, secret.name, err))
		}
		*secret.value = strings.TrimRight(string(text), "\r\n")
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// finishTopology checks what is different for one server, a Cluster and Sentinels.
func (s *Settings) finishTopology(refuse func(name string, value any, rule string)) {
	several := s.RedisCluster || s.RedisSentinelMaster != ""
	for address := range strings.SplitSeq(s.RedisAddress, ",") {
		if err := checkAddress(strings.TrimSpace(address)); err != nil {
			refuse("REDIS_ADDRESS", s.RedisAddress, err.Error())
			break
		}
	}
	if !several && strings.Contains(s.RedisAddress, ",") {
		refuse("REDIS_ADDRESS", s.RedisAddress, "must be one address without QUOTA_REDIS_CLUSTER and QUOTA_REDIS_SENTINEL_MASTER")
	}
	if s.RedisCluster && s.RedisSentinelMaster != "" {
		refuse("REDIS_SENTINEL_MASTER", s.RedisSentinelMaster, "and QUOTA_REDIS_CLUSTER exclude each other")
	}
	if s.RedisCluster && s.RedisDatabase != 0 {
		refuse("REDIS_DATABASE", s.RedisDatabase, "must be 0 on a Redis Cluster, which has no other")
	}
	if s.RedisSentinelMaster == "" {
		for name, value := range map[string]string{"USERNAME": s.RedisSentinelUsername, "PASSWORD_FILE": s.RedisSentinelPasswordFile} {
			if value != "" {
				refuse("REDIS_SENTINEL_"+name, value, "needs QUOTA_REDIS_SENTINEL_MASTER")
			}
		}
		if s.RedisSentinelPassword != "" {
			refuse("REDIS_SENTINEL_PASSWORD", "(hidden)", "needs QUOTA_REDIS_SENTINEL_MASTER")
		}
	}
}

func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("must be host:port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return errors.New("must be host:port with a port from 0 to 65535")
	}
	return nil
}

func (s Settings) level() (level slog.Level, err error) {
	err = level.UnmarshalText([]byte(s.LogLevel))
	return level, err
}

// Level is the least level that is logged.
func (s Settings) Level() slog.Level {
	level, _ := s.level() // checked by Load
	return level
}

// Connection is how to reach the process' Redis.
func (s Settings) Connection() redisstore.Connection {
	return redisstore.Connection{
		Address:  s.RedisAddress,
		Username: s.RedisUsername,
		Password: s.RedisPassword,
		Database: s.RedisDatabase,

		Cluster:          s.RedisCluster,
		SentinelMaster:   s.RedisSentinelMaster,
		SentinelUsername: s.RedisSentinelUsername,
		SentinelPassword: s.RedisSentinelPassword,

		TLS:           s.RedisTLS,
		TLSServerName: s.RedisTLSServerName,
		TLSSkipVerify: s.RedisTLSSkipVerify,
		TLSCAFile:     s.RedisTLSCaFile,
		TLSCertFile:   s.RedisTLSCertFile,
		TLSKeyFile:    s.RedisTLSKeyFile,
		DialTimeout:   s.RedisDialTimeout,
		ReadTimeout:   s.RedisReadTimeout,
		WriteTimeout:  s.RedisWriteTimeout,
		PoolSize:      s.RedisPoolSize,
	}
}

// String lists the settings by their variables, without the passwords.
func (s Settings) String() string {
	v := reflect.ValueOf(s)
	var b strings.Builder
	for i, variable := range Names() {
		value := fmt.Sprint(v.Field(i).Interface())
		if strings.HasSuffix(v.Type().Field(i).Name, "Password") && value != "" {
			value = "(hidden)"
		}
		fmt.Fprintf(&b, "%s=%s\n", variable, value)
	}
	return b.String()
}
