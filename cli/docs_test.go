package cli

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// update makes TestDocs write the page instead of comparing it.
var update = flag.Bool("update", false, "write docs/cli.md") //nolint:gochecknoglobals // go test reads flags into variables

// TestDocs compares docs/cli.md with what the commands say of themselves.
func TestDocs(t *testing.T) {
	path := filepath.Join("..", "docs", "cli.md")
	page := renderPage(t)
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page, string(written)); diff != "" {
		t.Errorf("docs/cli.md is stale: go test ./cli -run TestDocs -update (-want +got):\n%s", diff)
	}
}

const preface = `<!-- Generated from the help of the commands: go test ./cli -run TestDocs -update -->

# Command line

One binary is the operator and the tool. As a tool it works from a laptop with a kubeconfig, whether or not the operator
is installed.

Named ` + "`kubectl-oakum`" + ` and put in the path, it is also ` + "`kubectl oakum`" + `. For the shell to complete that,
put an executable file ` + "`kubectl_complete-oakum`" + ` beside it:

` + "```sh" + `
#!/bin/sh
exec kubectl oakum __complete "$@"
` + "```" + `
`

// renderPage writes the help of every command, and the types that the JSON is made of.
func renderPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(preface)
	root := newRoot("oakum", "dev")
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.IsAdditionalHelpTopicCommand() || cmd.Name() == "help" {
			continue
		}
		renderCommand(&b, cmd)
	}
	fields := comments(t)
	for _, part := range []struct {
		title, text string
		types       []reflect.Type
	}{
		{"The JSON of check", "Fields are added in later versions, never changed or removed. A list is never null.", []reflect.Type{
			reflect.TypeFor[Report](), reflect.TypeFor[PoolReport](), reflect.TypeFor[AllocationReport](), reflect.TypeFor[recordProblem](),
		}},
		{"The JSON of plan", "The same holds for it. Entries of `releases` may be taken out by hand.", []reflect.Type{
			reflect.TypeFor[Plan](), reflect.TypeFor[PlannedRelease](),
		}},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", part.title, part.text)
		for _, typ := range part.types {
			renderType(t, &b, typ, fields)
		}
	}
	return b.String()
}

func renderCommand(b *strings.Builder, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	text, usage := cmd.Long, cmd.UseLine()+"\n\n"+cmd.LocalFlags().FlagUsages()
	if cmd.Name() == "completion" { // Its shells have help of their own.
		text, usage = "", cmd.CommandPath()+" SHELL\n\n"
		for _, shell := range cmd.Commands() {
			usage += fmt.Sprintf("  %-12s%s\n", shell.Name(), shell.Short)
		}
	}
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```\n%s```\n", cmd.CommandPath(), text, usage)
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
	}
}

func renderType(t *testing.T, b *strings.Builder, typ reflect.Type, fields map[string]string) {
	t.Helper()
	name := strings.ToUpper(typ.Name()[:1]) + typ.Name()[1:]
	fmt.Fprintf(b, "\n### %s\n\n| field | type | |\n|---|---|---|\n", name)
	for f := range typ.Fields() {
		if f.Anonymous {
			fmt.Fprintf(b, "| | | every field of %s |\n", f.Type.Name())
			continue
		}
		comment := fields[typ.Name()+"."+f.Name]
		if comment == "" {
			t.Errorf("%s.%s has no comment that could be documented", typ.Name(), f.Name)
		}
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", key, jsonType(f.Type), comment)
	}
}

// jsonType says what a Go type is in JSON.
func jsonType(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Slice:
		return "list of " + jsonType(t.Elem())
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "number"
	case t.Kind() == reflect.String:
		return "string"
	case t.PkgPath() == "time":
		return "time"
	}
	return strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
}

// comments returns the comment of every field of a struct in this package, by Type.Field.
func comments(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, file := range []string{"check.go", "gather.go", "plan.go"} {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for node := range ast.Preorder(tree) {
			spec, ok := node.(*ast.TypeSpec)
			if !ok {
				continue
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						found[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
					}
				}
			}
		}
	}
	return found
}
