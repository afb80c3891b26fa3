// Command generate writes charts/kong-quota/values.schema.json and README.md from
// the comments in values.yaml. `go generate .` runs it in the root.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	if err := write("charts/kong-quota"); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func write(chart string) error {
	schema, readme, err := generate(chart)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(chart, "values.schema.json"), schema, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(chart, "README.md"), readme, 0o644)
}

func generate(chart string) (schema, readme []byte, err error) {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return nil, nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, nil, fmt.Errorf("values.yaml: %w", err)
	}
	var rows []row
	root, err := object("", document.Content[0], &rows)
	if err != nil {
		return nil, nil, fmt.Errorf("values.yaml: %w", err)
	}
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	// Helm adds it to the values of a chart that is a dependency.
	root["properties"].(map[string]any)["global"] = map[string]any{"type": "object"}
	schema, err = json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, nil, err
	}
	head, err := os.ReadFile(filepath.Join(chart, "README.md.tmpl"))
	if err != nil {
		return nil, nil, err
	}
	var b strings.Builder
	b.Write(head)
	b.WriteString("\n| value | type | default | meaning |\n|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", r.path, r.kind, r.value, r.meaning)
	}
	return append(schema, '\n'), []byte(b.String()), nil
}

type row struct{ path, kind, value, meaning string }

// object makes the schema of a mapping, and the rows of its documented values.
func object(path string, node *yaml.Node, rows *[]row) (map[string]any, error) {
	properties := map[string]any{}
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		meaning, rules, err := comment(key.HeadComment)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if meaning == "" {
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				return nil, fmt.Errorf("%s: has no comment with a description", at)
			}
			if properties[key.Value], err = object(at, value, rows); err != nil {
				return nil, err
			}
			continue
		}
		var plain any
		if err := value.Decode(&plain); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		property := map[string]any{"type": kind(plain), "description": meaning}
		for name, rule := range rules {
			property[name] = rule
		}
		properties[key.Value] = property
		shown, err := json.Marshal(plain)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if len(shown) > 80 {
			shown = []byte("see values.yaml")
		}
		*rows = append(*rows, row{at, fmt.Sprint(property["type"]), string(shown), strings.ReplaceAll(meaning, "|", "\\|")})
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}, nil
}

// comment reads the description behind "# --" and the rules behind "# @schema".
func comment(text string) (meaning string, rules map[string]any, err error) {
	lines := strings.Split(text, "\n")
	begun := false
	for _, line := range lines {
		line = strings.TrimSpace(strings.TrimPrefix(line, "#"))
		if rule, found := strings.CutPrefix(line, "@schema "); found {
			if err := yaml.Unmarshal([]byte("{"+quotePattern(rule)+"}"), &rules); err != nil {
				return "", nil, fmt.Errorf("rule %q: %w", rule, err)
			}
			continue
		}
		if first, found := strings.CutPrefix(line, "-- "); found {
			begun, line = true, first
		}
		if begun {
			meaning = strings.TrimSpace(meaning + " " + line)
		}
	}
	return meaning, rules, nil
}

// quotePattern lets a pattern stand in a rule as it is.
func quotePattern(rule string) string {
	if pattern, found := strings.CutPrefix(rule, "pattern: "); found {
		return "pattern: '" + pattern + "'"
	}
	return rule
}

func kind(value any) string {
	switch value.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case int:
		return "integer"
	case []any:
		return "array"
	default:
		return "object"
	}
}
