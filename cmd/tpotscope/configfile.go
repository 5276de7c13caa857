package main

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// configFile reads a file of settings. It goes through the file's own tree, so that each fault is named with its line
// and its key, and what is right is taken all the same: the checks that come after it find their faults, too.
type configFile struct {
	name    string
	all     []*setting
	anchors map[string]ast.Node
	depth   int               // of merges
	places  map[string]string // of every value that was taken, by its key
	faults  []error
}

// maxMerges bounds how deep mappings are merged into one another: an alias may stand within what it stands for.
const maxMerges = 32

// readConfigFile reads a file over the settings. What the file leaves open or empty stays as it is.
func readConfigFile(all []*setting, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	switch {
	case err != nil:
		return fmt.Errorf("read config: %w", err)
	case len(text) > maxConfig:
		return fmt.Errorf("read config: %s: longer than %d bytes, which is no file of settings", name, maxConfig)
	}
	return readConfig(all, name, text)
}

// maxConfig bounds a file of settings: what is longer, or never ends, was named by mistake.
const maxConfig = 1 << 20

func readConfig(all []*setting, name string, text []byte) error {
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimRight(yaml.FormatError(err, false, true), "\n "))
	}
	f := &configFile{name: name, all: all, anchors: map[string]ast.Node{}, places: map[string]string{}}
	documents := slices.DeleteFunc(tree.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil })
	for i, d := range documents {
		if i > 0 {
			f.fault(d.Body, "", "a second document begins here: a file of settings is one")
			break
		}
		if body := f.resolve(d.Body); body != nil {
			f.section("", body)
		}
	}
	return errors.Join(f.faults...)
}

// fault notes one, with its place.
func (f *configFile) fault(at ast.Node, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	f.faults = append(f.faults, fmt.Errorf("%s: %s", f.place(at), text))
}

// place says where in the file something is.
func (f *configFile) place(at ast.Node) string {
	if t := at.GetToken(); t != nil && t.Position != nil {
		return fmt.Sprintf("%s:%d:%d", f.name, t.Position.Line, t.Position.Column)
	}
	return f.name
}

// placed puts the place before a fault of a value that the file gave, though it was found when all layers were there.
func placed(fault error, all []*setting) error {
	key, _, ok := strings.Cut(fault.Error(), ": ")
	if !ok {
		return fault
	}
	key, _, _ = strings.Cut(key, " ") // some name the value first
	for _, s := range all {
		rest, ok := strings.CutPrefix(key, s.key)
		if !ok || rest != "" && rest[0] != '.' && rest[0] != '[' || !strings.HasPrefix(s.origin, "file ") {
			continue
		}
		for part := key; len(part) >= len(s.key); part = part[:strings.LastIndexAny(part, ".[")] {
			if place, ok := s.places[part]; ok {
				return fmt.Errorf("%s: %w", place, fault)
			}
		}
	}
	return fault
}

// resolve follows anchors, aliases and tags to the value itself.
func (f *configFile) resolve(n ast.Node) ast.Node {
	for range len(f.anchors) + 8 { // an alias may stand for another, and none for itself
		switch x := n.(type) {
		case *ast.AnchorNode:
			f.anchors[x.Name.GetToken().Value] = x.Value
			n = x.Value
		case *ast.AliasNode:
			value, ok := f.anchors[x.Value.GetToken().Value]
			if !ok {
				f.fault(x, "", "there is no anchor %q above", x.Value.GetToken().Value)
				return nil
			}
			n = value
		case *ast.TagNode:
			n = x.Value
		default:
			return n
		}
	}
	return n
}

// pairs calls each with the pairs of a mapping, those that are merged into it among them.
func (f *configFile) pairs(n ast.Node, key string, each func(name string, v *ast.MappingValueNode)) {
	if n.Type() == ast.NullType {
		return
	}
	if t := n.Type(); t != ast.MappingType && t != ast.MappingValueType {
		f.fault(n, key, "%s where a mapping is wanted", describe(n))
		return
	}
	seen := map[string]bool{}
	for _, v := range f.flatten(n) {
		name := v.Key.GetToken().Value
		if seen[name] {
			f.fault(v.Key, join(key, name), "is there twice")
			continue
		}
		seen[name] = true
		each(name, v)
	}
}

// flatten returns the pairs of a mapping with their values resolved, and puts those in it that are merged into it.
func (f *configFile) flatten(n ast.Node) []*ast.MappingValueNode {
	var own, merged []*ast.MappingValueNode
	x, ok := n.(*ast.MappingNode)
	if ok {
		own = x.Values
	} else if v, single := n.(*ast.MappingValueNode); single {
		own = []*ast.MappingValueNode{v}
	}
	var plain []*ast.MappingValueNode
	for _, v := range own {
		if v.Value = f.resolve(v.Value); v.Value == nil {
			continue
		}
		if !v.Key.IsMergeKey() {
			plain = append(plain, v)
			continue
		}
		if f.depth >= maxMerges {
			f.fault(v.Key, "", "mappings are merged too deep")
			return nil
		}
		f.depth++
		merged = append(merged, f.flatten(v.Value)...)
		f.depth--
	}
	for _, v := range merged {
		if !slices.ContainsFunc(plain, func(p *ast.MappingValueNode) bool { return p.Key.GetToken().Value == v.Key.GetToken().Value }) {
			plain = append(plain, v)
		}
	}
	if ok {
		x.Values = plain
	}
	return plain
}

func join(section, name string) string {
	if section == "" {
		return name
	}
	return section + "." + name
}

// section reads the settings below a key.
func (f *configFile) section(key string, n ast.Node) {
	f.pairs(n, key, func(name string, v *ast.MappingValueNode) {
		path := join(key, name)
		if i := slices.IndexFunc(f.all, func(s *setting) bool { return s.key == path }); i >= 0 {
			f.setting(f.all[i], v.Value)
			return
		}
		if slices.ContainsFunc(f.all, func(s *setting) bool { return strings.HasPrefix(s.key, path+".") }) {
			f.section(path, v.Value)
			return
		}
		f.unknown(v.Key, path, name, f.names(key))
	})
}

// names returns the names that may stand below a key.
func (f *configFile) names(key string) []string {
	var names []string
	for _, s := range f.all {
		if rest, ok := strings.CutPrefix(s.key, key); ok {
			name, _, _ := strings.Cut(strings.TrimPrefix(rest, "."), ".")
			names = append(names, name)
		}
	}
	return slices.Compact(names)
}

// unknown names a key that is none, with the nearest one that is: of its own section, else of another.
func (f *configFile) unknown(at ast.Node, path, name string, here []string) {
	near := nearest(name, here)
	if near == "" {
		for _, s := range f.all {
			if strings.HasSuffix(s.key, "."+name) {
				near = s.key
				break
			}
		}
	}
	if near == "" {
		f.fault(at, path, "no such setting")
		return
	}
	f.fault(at, path, "no such setting (did you mean %q?)", near)
}

// setting gives a setting the value of the file.
func (f *configFile) setting(s *setting, n ast.Node) {
	if n.Type() == ast.NullType {
		return
	}
	before := len(f.faults)
	f.check(s.key, n, s.value.Type())
	if len(f.faults) > before {
		return
	}
	fresh := reflect.New(s.value.Type())
	if err := yaml.NodeToValue(n, fresh.Interface(), yaml.Strict()); err != nil {
		f.fault(n, s.key, "%s where %s is wanted", describe(n), typeName(s.value.Type()))
		return
	}
	s.value.Set(fresh.Elem())
	s.origin, s.places = "file "+f.name, f.places
}

// check names every part of a value that is not of the type wanted.
func (f *configFile) check(key string, n ast.Node, t reflect.Type) {
	f.places[key] = f.place(n)
	switch kind := t.Kind(); {
	case t == reflect.TypeFor[time.Duration]():
		if _, err := time.ParseDuration(scalar(n)); err != nil {
			f.fault(n, key, "%q is not a duration such as 110ms or 2s", n.String())
		}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		if err := reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(scalar(n))); err != nil { //nolint:forcetypeassert // it was just asked
			f.fault(n, key, "%v", err)
		}
	case kind == reflect.Pointer:
		f.check(key, n, t.Elem())
	case kind == reflect.Slice:
		f.checkList(key, n, t.Elem())
	case kind == reflect.Map:
		f.pairs(n, key, func(name string, v *ast.MappingValueNode) { f.check(join(key, name), v.Value, t.Elem()) })
	case kind == reflect.Struct:
		f.checkStruct(key, n, t)
	case !fits(n, kind):
		f.fault(n, key, "%s where %s is wanted", describe(n), typeName(t))
	}
}

func (f *configFile) checkList(key string, n ast.Node, t reflect.Type) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		f.fault(n, key, "%s where a list is wanted", describe(n))
		return
	}
	for i, v := range list.Values {
		if list.Values[i] = f.resolve(v); list.Values[i] != nil {
			f.check(fmt.Sprintf("%s[%d]", key, i), list.Values[i], t)
		}
	}
}

func (f *configFile) checkStruct(key string, n ast.Node, t reflect.Type) {
	fields := map[string]reflect.Type{}
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		fields[name], names = t.Field(i).Type, append(names, name)
	}
	f.pairs(n, key, func(name string, v *ast.MappingValueNode) {
		switch wanted, ok := fields[name]; {
		case !ok:
			f.unknown(v.Key, join(key, name), name, names)
		case v.Value.Type() != ast.NullType:
			f.check(join(key, name), v.Value, wanted)
		}
	})
}

// scalar returns the text of a value that is no collection, else nothing.
func scalar(n ast.Node) string {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value
	case *ast.LiteralNode:
		return x.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value
	}
	return ""
}

// fits reports whether a value of a file can be one of that kind.
func fits(n ast.Node, kind reflect.Kind) bool {
	t := n.Type()
	switch { //nolint:staticcheck // a tagged switch would have to name every kind there is
	case kind == reflect.Bool:
		return t == ast.BoolType
	case kind == reflect.String:
		return t == ast.StringType || t == ast.LiteralType || t == ast.IntegerType || t == ast.FloatType
	case kind == reflect.Float64:
		return t == ast.FloatType || t == ast.IntegerType
	case kind == reflect.Int || kind == reflect.Int64:
		return t == ast.IntegerType
	}
	return false
}

// describe says what a value is, for people.
func describe(n ast.Node) string {
	switch t := n.Type(); { //nolint:staticcheck // a tagged switch would have to name every kind there is
	case t == ast.StringType || t == ast.LiteralType:
		return fmt.Sprintf("the text %q", scalar(n))
	case t == ast.IntegerType || t == ast.FloatType:
		return "the number " + n.GetToken().Value
	case t == ast.BoolType:
		return n.GetToken().Value
	case t == ast.MappingType || t == ast.MappingValueType:
		return "a mapping"
	case t == ast.SequenceType:
		return "a list"
	case t == ast.NullType:
		return "nothing"
	}
	return "something else"
}

// typeName names a type for people.
func typeName(t reflect.Type) string {
	switch kind := t.Kind(); { //nolint:staticcheck // a tagged switch would have to name every kind there is
	case kind == reflect.Pointer:
		return typeName(t.Elem())
	case kind == reflect.Bool:
		return "true or false"
	case kind == reflect.String:
		return "text"
	case kind == reflect.Float64:
		return "a number"
	case kind == reflect.Int || kind == reflect.Int64:
		return "a whole number"
	case kind == reflect.Slice:
		return "a list"
	case kind == reflect.Map || kind == reflect.Struct:
		return "a mapping"
	}
	return t.String()
}
