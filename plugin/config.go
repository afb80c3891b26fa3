package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"kong-quota/quota"
)

// Config is the configuration of one instance as Kong sends it, with the
// schema's defaults filled in. The json tags are the names in kong.yml; schema.go
// describes every field.
type Config struct {
	Identify   []string `json:"identify"`
	HeaderName string   `json:"header_name"`
	Fallback   string   `json:"fallback"`
	Scope      string   `json:"scope"`

	Limits []LimitConfig `json:"limits"`

	Mode            string `json:"mode"`
	Headers         string `json:"headers"`
	UpstreamHeaders bool   `json:"upstream_headers"`
	ErrorCode       int    `json:"error_code"`
	ErrorMessage    string `json:"error_message"`
	GRPC            bool   `json:"grpc"`

	OnError string      `json:"on_error"`
	Timeout int         `json:"timeout"` // milliseconds
	Redis   RedisConfig `json:"redis"`
}

// LimitConfig is a quota.Limit as text.
type LimitConfig struct {
	Name       string      `json:"name"`
	Algorithm  string      `json:"algorithm"`
	Limit      int64       `json:"limit"`
	Window     string      `json:"window"`
	Burst      int64       `json:"burst"`
	Buckets    int         `json:"buckets"`
	Lease      LeaseConfig `json:"lease"`
	OnLimit    string      `json:"on_limit"`
	MaxDelay   string      `json:"max_delay"`
	Identify   []string    `json:"identify"` // the instance's where it is empty
	Align      string      `json:"align"`
	Timezone   string      `json:"timezone"`
	WeekStart  string      `json:"week_start"`
	DayOfMonth int         `json:"day_of_month"`
}

// LeaseConfig lets nodes hold a part of the limit.
type LeaseConfig struct {
	Share  float64 `json:"share"`
	MaxAge string  `json:"max_age"`
}

// RedisConfig overrides the process' Redis for one instance.
type RedisConfig struct {
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Username   string `json:"username"`
	Password   string `json:"password"`
	Database   *int   `json:"database"`
	SSL        bool   `json:"ssl"`
	SSLVerify  bool   `json:"ssl_verify"`
	ServerName string `json:"server_name"`
}

// Defaults are the values of the fields that a configuration leaves out. The
// schema shows them to Kong, which fills them in.
var Defaults = Config{
	Identify:  []string{identifyConsumer},
	Fallback:  fallbackIP,
	Mode:      modeEnforce,
	Headers:   headersKong,
	ErrorCode: 429,
	GRPC:      true,
	OnError:   onErrorAllow,
	Timeout:   100,
	Redis:     RedisConfig{SSLVerify: true},
}

var identifyWords = []string{identifyConsumer, identifyCredential, identifyIP, identifyHeader, identifyService, identifyRoute, identifyGlobal}

// The words of the fields that take one of a few.
const (
	identifyConsumer   = "consumer"
	identifyCredential = "credential"
	identifyIP         = "ip"
	identifyHeader     = "header"
	identifyService    = "service"
	identifyRoute      = "route"
	identifyGlobal     = "global"

	onLimitRefuse = "refuse"
	onLimitDelay  = "delay"

	fallbackIP   = "ip"
	fallbackDeny = "deny"
	fallbackSkip = "skip"

	modeEnforce  = "enforce"
	modeAnnotate = "annotate"

	headersKong = "kong"
	headersIETF = "ietf"
	headersBoth = "both"
	headersOff  = "off"

	onErrorAllow = "allow"
	onErrorDeny  = "deny"
)

// placement is where Kong has the plugin configured: the ids of the entities
// that the instance is for, empty where it is for all of them.
type placement struct {
	PluginID   string `json:"__plugin_id"`
	ConsumerID string `json:"consumer_id"`
	RouteID    string `json:"route_id"`
	ServiceID  string `json:"service_id"`
}

// scope is where the quotas of this placement are counted unless the
// configuration names a scope. A consumer's own configuration counts where the
// general one would, so that a consumer who gets another quota keeps the usage.
func (p placement) scope() string {
	switch {
	case p.RouteID != "":
		return "route:" + p.RouteID
	case p.ServiceID != "":
		return "service:" + p.ServiceID
	default:
		return "global"
	}
}

// decodeConfig reads the JSON that Kong starts an instance with: the fields of
// Config beside Kong's own, which begin with two underscores or are the ids of a
// placement. unknown has a problem for every other name; the rest is decoded all
// the same, so that its problems can be reported with them.
func decodeConfig(data []byte) (config Config, where placement, unknown []error, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return Config{}, placement{}, nil, fmt.Errorf("config: %w", err)
	}
	if err := json.Unmarshal(data, &where); err != nil {
		return Config{}, placement{}, nil, fmt.Errorf("config: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch {
		case strings.HasPrefix(name, "__"):
		case name == "consumer_id", name == "route_id", name == "service_id", name == "consumer_group_id":
		case slices.Contains(fieldNames, name):
			continue
		default:
			// Its value stays unsaid: it may be a secret under a wrong name.
			unknown = append(unknown, fmt.Errorf("%s: is no field of the configuration", name))
		}
		delete(fields, name)
	}
	own, err := json.Marshal(fields)
	if err != nil {
		return Config{}, placement{}, nil, fmt.Errorf("config: %w", err)
	}
	config = Defaults
	config.Identify = nil // or decoding would write into the default's array
	decoder := json.NewDecoder(bytes.NewReader(own))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&config); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			err = &quota.FieldError{Field: wrong.Field, Value: wrong.Value, Rule: "does not fit the type " + wrong.Type.String()}
		}
		return Config{}, placement{}, nil, fmt.Errorf("config: %w", errors.Join(append(unknown, err)...))
	}
	if config.Identify == nil {
		config.Identify = Defaults.Identify
	}
	return config, where, unknown, nil
}

// fieldNames are the names that a configuration may have.
var fieldNames = func() (names []string) {
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		names = append(names, t.Field(i).Tag.Get("json"))
	}
	return names
}()
