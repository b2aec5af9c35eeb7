package v1alpha1

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Decode reads the content of a configuration file: one YAML document over the settings of Default. Its errors are one
// line, and tell each mistake with its line in the file, its field, its value and what to write instead. Keys that are
// unknown or stand twice and values of the wrong type are told all at once; where there are none, so is everything that
// Validate finds. A file that is no Configuration of this version is not looked at any further.
func Decode(data []byte) (*Configuration, error) {
	root, err := document(data)
	if err != nil {
		return nil, err
	}
	c := Default()
	c.TypeMeta = metav1.TypeMeta{}
	d := decoder{lines: map[string]int{}}
	d.value(root, nil, reflect.ValueOf(c).Elem())
	errs := c.validateHeader()
	if len(errs) > 0 {
		d.problems = nil
	} else if len(d.problems) == 0 {
		errs = c.Validate()
	}
	for _, err := range errs {
		d.refuse(d.lines[err.Field], err)
	}
	if len(d.problems) > 0 {
		return nil, errors.New(strings.Join(d.problems, "; "))
	}
	return c, nil
}

// document returns the mapping that is the one document in data.
func document(data []byte) (*yaml.Node, error) {
	stream := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	err := stream.Decode(&first)
	switch {
	case errors.Is(err, io.EOF), err == nil && isNull(first.Content[0]):
		return nil, fmt.Errorf("holds nothing: must begin with apiVersion: %s and kind: %s", APIVersion, Kind)
	case err != nil:
		return nil, fmt.Errorf("reading the document: %w", err)
	}
	err = stream.Decode(&second)
	switch root := first.Content[0]; {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document begins: must hold one only", second.Line)
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("reading what follows the document: %w", err)
	case root.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("line %d: must be a mapping that begins with apiVersion: %s and kind: %s", root.Line, APIVersion, Kind)
	default:
		return root, nil
	}
}

// decoder lays YAML over a value. It walks the nodes of go.yaml.in/yaml/v3 itself, because nothing that decodes a file in
// one call gives the line for each mistake: yaml/v3's KnownFields does not know JSON tags and thus no metav1.Duration,
// and it truncates fractions; sigs.k8s.io/yaml goes through JSON, where lines are lost, and reads the mode Off as
// false; goccy/go-yaml stops at the first mistake and loses the line of one in a duration.
type decoder struct {
	// problems are complete messages.
	problems []string
	// lines tells where a field was set.
	lines map[string]int
}

// refuse notes an error. Line 0 stands for a field that the file does not set.
func (d *decoder) refuse(line int, err *field.Error) {
	message := err.Error()
	if err.Field == (*field.Path)(nil).String() {
		message = err.ErrorBody()
	}
	if line > 0 {
		message = fmt.Sprintf("line %d: %s", line, message)
	}
	d.problems = append(d.problems, strings.ReplaceAll(message, "\n", `\n`))
}

// value decodes a node. A null leaves what is there. The type bounds the depth, so an alias to its own parent ends.
func (d *decoder) value(node *yaml.Node, path *field.Path, into reflect.Value) {
	node = resolve(node)
	if isNull(node) {
		return
	}
	wrong := func(detail string) {
		d.refuse(node.Line, field.TypeInvalid(path, text(node), detail))
	}
	if duration, ok := reflect.TypeAssert[*metav1.Duration](into.Addr()); ok {
		parsed, err := time.ParseDuration(node.Value)
		if node.ShortTag() != "!!str" || err != nil {
			wrong("must be a duration such as 30s or 5m")
			return
		}
		duration.Duration = parsed
		return
	}
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.value(node, path, into.Elem())
	case reflect.Struct:
		if node.Kind != yaml.MappingNode {
			wrong("must be a mapping")
			return
		}
		d.object(node, path, into)
	case reflect.Map:
		if node.Kind != yaml.MappingNode {
			wrong("must be a mapping")
			return
		}
		d.table(node, path, into)
	case reflect.Slice:
		if node.Kind != yaml.SequenceNode {
			wrong("must be a list")
			return
		}
		d.list(node, path, into)
	case reflect.String:
		if node.ShortTag() != "!!str" {
			wrong("must be a string: put it in quotes")
			return
		}
		into.SetString(node.Value)
	case reflect.Bool:
		if node.ShortTag() != "!!bool" || node.Decode(into.Addr().Interface()) != nil {
			wrong("must be true or false")
		}
	case reflect.Int:
		if node.ShortTag() != "!!int" || node.Decode(into.Addr().Interface()) != nil {
			wrong("must be a whole number")
		}
	case reflect.Float64:
		if tag := node.ShortTag(); tag != "!!int" && tag != "!!float" || node.Decode(into.Addr().Interface()) != nil {
			wrong("must be a number")
		}
	default:
		panic(fmt.Sprintf("no way to decode a %s at %s", into.Type(), path))
	}
}

// object decodes the keys of a struct, by their JSON names.
func (d *decoder) object(node *yaml.Node, path *field.Path, into reflect.Value) {
	fields := map[string]reflect.Value{}
	for _, f := range reflect.VisibleFields(into.Type()) {
		if !f.Anonymous {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields[name] = into.FieldByIndex(f.Index)
		}
	}
	for key, value := range d.entries(node, path) {
		f, ok := fields[key.Value]
		if !ok {
			d.refuse(key.Line, field.NotSupported(path, text(key), slices.Sorted(maps.Keys(fields))))
			continue
		}
		child := path.Child(key.Value)
		d.lines[child.String()] = key.Line
		d.value(value, child, f)
	}
}

// table decodes the keys of a map.
func (d *decoder) table(node *yaml.Node, path *field.Path, into reflect.Value) {
	for key, value := range d.entries(node, path) {
		if into.IsNil() {
			into.Set(reflect.MakeMap(into.Type()))
		}
		child := path.Key(key.Value)
		d.lines[child.String()] = key.Line
		element := reflect.New(into.Type().Elem()).Elem()
		d.value(value, child, element)
		into.SetMapIndex(reflect.ValueOf(key.Value), element)
	}
}

// list decodes the items of a slice, in the place of those that are there.
func (d *decoder) list(node *yaml.Node, path *field.Path, into reflect.Value) {
	into.Set(reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content)))
	for i, item := range node.Content {
		child := path.Index(i)
		d.lines[child.String()] = item.Line
		d.value(item, child, into.Index(i))
	}
}

// entries yields the keys of a mapping with their values. It refuses a key that stands there already.
func (d *decoder) entries(node *yaml.Node, path *field.Path) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		lines := map[string]int{}
		for pair := range slices.Chunk(node.Content, 2) {
			key := resolve(pair[0])
			if line, ok := lines[key.Value]; ok {
				err := field.Duplicate(path, text(key))
				err.Detail = fmt.Sprintf("is in line %d already: keep one", line)
				d.refuse(pair[0].Line, err)
				continue
			}
			lines[key.Value] = pair[0].Line
			if !yield(key, pair[1]) {
				return
			}
		}
	}
}

func resolve(node *yaml.Node) *yaml.Node {
	return cmp.Or(node.Alias, node)
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

// text returns a node as a message shows it.
func text(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "{...}"
	case yaml.SequenceNode:
		return "[...]"
	default:
		return node.Value
	}
}
