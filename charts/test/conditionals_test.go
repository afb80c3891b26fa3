package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/template/parse"

	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// branch is one of the ways that a template can go at an if, a with or a range.
type branch struct {
	file, where string
	list        *parse.ListNode
}

// branches finds those of a template. An else that is not there is not one of them:
// that a thing is left out is what the golden files show.
func branches(file string, node parse.Node, found func(branch)) {
	both := func(kind string, b parse.BranchNode) {
		where := fmt.Sprintf("%s %s", kind, b.Pipe)
		found(branch{file, where, b.List})
		branches(file, b.List, found)
		if b.ElseList != nil {
			found(branch{file, "else of " + where, b.ElseList})
			branches(file, b.ElseList, found)
		}
	}
	switch n := node.(type) {
	case *parse.ListNode:
		for _, child := range n.Nodes {
			branches(file, child, found)
		}
	case *parse.IfNode:
		both("if", n.BranchNode)
	case *parse.WithNode:
		both("with", n.BranchNode)
	case *parse.RangeNode:
		both("range", n.BranchNode)
	}
}

// reached is what a template says in the place of a branch, to tell that it goes there.
const reached = "this branch is reached"

// TestEveryConditional: for each branch of each template there are values, among those
// of the other tests, that take it.
func TestEveryConditional(t *testing.T) {
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	var all []chartutil.Values
	add := func(kubernetes string, values map[string]any) {
		t.Helper()
		capabilities := *chartutil.DefaultCapabilities
		capabilities.KubeVersion = chartutil.KubeVersion{Version: "v" + kubernetes + ".0"}
		prepared, err := chartutil.ToRenderValuesWithSchemaValidation(loaded, values, chartutil.ReleaseOptions{Name: "r", Namespace: "default"}, &capabilities, true)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, prepared)
	}
	for _, values := range matrix(t) {
		add("1.31", values)
	}
	for _, c := range conditionals {
		add("1.31", valuesOf(t, c.values))
	}
	for values := range badValues {
		add("1.31", valuesOf(t, values))
	}
	add("1.28", valuesOf(t, "mode: sidecar\n"+base)) // TestOldKubernetes

	fail := &parse.TextNode{NodeType: parse.NodeText, Text: []byte(`{{ fail "` + reached + `" }}`)}
	count := 0
	for _, file := range loaded.Templates {
		trees, original := parseTemplate(t, file), file.Data
		for _, tree := range trees {
			branches(file.Name, tree.Root, func(b branch) {
				count++
				whole := b.list.Nodes
				b.list.Nodes = []parse.Node{fail}
				file.Data = source(trees)
				b.list.Nodes = whole
				i := slices.IndexFunc(all, func(values chartutil.Values) bool {
					_, err := engine.Render(loaded, values)
					return err != nil && strings.Contains(err.Error(), reached)
				})
				if i < 0 {
					t.Errorf("%s: no test goes into {{ %s }}", b.file, b.where)
				} else { // who got here gets to the next branch, too, more often than not
					all[0], all[i] = all[i], all[0]
				}
			})
		}
		file.Data = original
	}
	if count < 80 {
		t.Errorf("%d branches were found", count)
	}
	t.Logf("%d branches", count)
}

// parseTemplate gives the template of a file, and those that it defines.
func parseTemplate(t *testing.T, file *helm.File) map[string]*parse.Tree {
	t.Helper()
	trees := map[string]*parse.Tree{}
	tree := parse.New(file.Name)
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(string(file.Data), "", "", trees); err != nil {
		t.Fatal(err)
	}
	return trees
}

// source is the text of a file's templates.
func source(trees map[string]*parse.Tree) []byte {
	var b strings.Builder
	for name, tree := range trees {
		if strings.Contains(name, "/") { // the file itself
			b.WriteString(tree.Root.String())
		} else {
			fmt.Fprintf(&b, "{{ define %q }}%s{{ end }}", name, tree.Root)
		}
	}
	return []byte(b.String())
}
