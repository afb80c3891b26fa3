package plugin

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kong-quota/internal/devkong/schema"
)

// read is the schema as Kong reads it: from the dump.
func read(t *testing.T) *schema.Plugin {
	t.Helper()
	text, err := Dump(Name, "/usr/local/kong")
	if err != nil {
		t.Fatal(err)
	}
	var dump struct {
		Protocol, SocketPath string
		Plugins              []struct {
			Name, Version string
			Phases        []string
			Priority      int
			Schema        json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		t.Fatal(err)
	}
	if dump.Protocol != "ProtoBuf:1" || dump.SocketPath != "/usr/local/kong/quota.socket" || dump.Plugins[0].Name != "quota" ||
		!slices.Equal(dump.Plugins[0].Phases, []string{"access"}) || dump.Plugins[0].Priority != Priority || dump.Plugins[0].Version != Version {
		t.Errorf("dump %+v", dump)
	}
	p, err := schema.ReadPlugin(dump.Plugins[0].Schema)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The schema and Config have the same fields, every field has a description, and
// secrets are marked.
func TestSchemaIsThatOfConfig(t *testing.T) {
	p := read(t)
	var compare func(path string, f schema.Field, of reflect.Type)
	compare = func(path string, f schema.Field, of reflect.Type) {
		var inSchema, inConfig []string
		for _, field := range f.Fields {
			inSchema = append(inSchema, field.Name)
			if field.Description == "" {
				t.Errorf("%s%s has no description", path, field.Name)
			}
		}
		for i := range of.NumField() {
			name := of.Field(i).Tag.Get("json")
			if name == "" || strings.Contains(name, ",") {
				t.Errorf("%s%s has the json tag %q", path, of.Field(i).Name, name)
			}
			inConfig = append(inConfig, name)
		}
		if !slices.Equal(inSchema, inConfig) {
			t.Errorf("%s: the schema has %v, the config %v", path, inSchema, inConfig)
		}
		for _, field := range f.Fields {
			for i := range of.NumField() {
				if of.Field(i).Tag.Get("json") != field.Name {
					continue
				}
				switch inner := of.Field(i).Type; {
				case field.Type == "record":
					compare(path+field.Name+".", field.Field, inner)
				case field.Elements != nil && field.Elements.Type == "record":
					compare(path+field.Name+"[].", *field.Elements, inner.Elem())
				}
			}
		}
	}
	compare("", p.Config, reflect.TypeFor[Config]())
	for _, f := range p.Config.Fields {
		for _, inner := range f.Fields {
			if inner.Name == "password" && (!inner.Referenceable || !inner.Encrypted) {
				t.Error("the password is not marked as a secret")
			}
		}
	}
}

// Kong fills in what the plugin would take anyway.
func TestSchemaDefaultsAreDefaults(t *testing.T) {
	filled := read(t).Config.Fill(map[string]any{})
	text, err := json.Marshal(filled)
	if err != nil {
		t.Fatal(err)
	}
	config, _, _, err := decodeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(config, Defaults) {
		t.Errorf("Kong fills in %+v, the plugin takes %+v", config, Defaults)
	}
}

// Connections are shared where they are equal, and the process' password is not
// sent to another host.
func TestStoresAreShared(t *testing.T) {
	two := 2
	p := newPlugin(t)
	p.stores.settings.Store = "redis"
	p.stores.settings.RedisAddress = "127.0.0.1:1"
	p.stores.settings.RedisPassword = "s3cret"
	p.stores.settings.RedisDialTimeout = 1
	own := p.stores.own
	other := RedisConfig{Host: "127.0.0.1", Port: 2}
	for name, c := range map[string]struct {
		record RedisConfig
		with   RedisConfig
		same   bool
	}{
		"nothing set":             {RedisConfig{SSLVerify: true}, RedisConfig{SSLVerify: true}, true},
		"equal records":           {other, other, true},
		"another port":            {other, RedisConfig{Host: "127.0.0.1", Port: 3}, false},
		"another database":        {RedisConfig{Database: &two}, RedisConfig{}, false},
		"equal databases":         {RedisConfig{Database: &two}, RedisConfig{Database: &two}, true},
		"the same host is itself": {RedisConfig{Host: "127.0.0.1", Port: 1}, RedisConfig{}, false},
	} {
		one, err := p.stores.forInstance(c.record)
		if err != nil {
			t.Fatal(err)
		}
		another, err := p.stores.forInstance(c.with)
		if err != nil {
			t.Fatal(err)
		}
		if (one == another) != c.same {
			t.Errorf("%s: shared is %v", name, one == another)
		}
	}
	if s, _ := p.stores.forInstance(RedisConfig{}); s != own {
		t.Error("an instance without a record does not share the process' store")
	}
	for c := range p.stores.opened {
		if c.Password != "" && c.Address != "127.0.0.1:1" {
			t.Errorf("%v gets the process' password", c)
		}
	}
	p.stores.settings.Store = "memory"
	if _, err := p.stores.forInstance(RedisConfig{Database: &two}); err == nil || err.Error() != `redis.host: "" must be set: this process has no Redis of its own (QUOTA_STORE=memory)` {
		t.Errorf("got %v", err)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{` + twoLimits + `}`))
	f.Add([]byte(`{"__seq__":1,"limits":[{"name":"a","limit":1,"window":"month","align":"calendar","day_of_month":31,"timezone":"Asia/Shanghai"}]}`))
	p := newPlugin(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if instance, err := p.Start(text); err == nil && instance.policy == nil {
			t.Errorf("%s started without a policy", text)
		}
	})
}
