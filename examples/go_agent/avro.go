package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// As much of Avro as Stele's schemas need: records are read by the schema that wrote them, whatever its fields are.

type Schema struct {
	kind     string // null, boolean, int, long, bytes, string, fixed, array, map, record, union
	name     string // of records and fixed: with the namespace
	size     int
	fields   []Field
	items    *Schema // of arrays and maps
	branches []*Schema
}

type Field struct {
	name     string
	schema   *Schema
	fallback any // the default, as JSON has it; nil: none
}

// Record is a decoded record. Its methods give a field's value, or the type's zero where the writer had no such field.
type Record struct {
	Name   string // without the namespace
	values map[string]any
}

func (r *Record) Text(name string) string { s, _ := r.values[name].(string); return s }
func (r *Record) Int(name string) int64   { n, _ := r.values[name].(int64); return n }
func (r *Record) Yes(name string) bool    { b, _ := r.values[name].(bool); return b }
func (r *Record) Bytes(name string) []byte {
	b, _ := r.values[name].([]byte)
	return b
}
func (r *Record) List(name string) []any { l, _ := r.values[name].([]any); return l }
func (r *Record) Map(name string) map[string]any {
	m, _ := r.values[name].(map[string]any)
	return m
}
func (r *Record) Record(name string) *Record {
	found, _ := r.values[name].(*Record)
	if found == nil {
		found = &Record{}
	}
	return found
}
func (r *Record) Texts(name string) []string {
	found := []string{}
	for _, each := range r.List(name) {
		found = append(found, each.(string))
	}
	return found
}

// Schemas are those of a folder: the newest by name, to write with, and all of its history by header, to read with.
type Schemas struct {
	newest   map[string]*Schema
	headers  map[string][]byte
	byHeader map[string]*Schema
}

const headerBytes = 10

func loadSchemas(folder string) (*Schemas, error) {
	found := &Schemas{map[string]*Schema{}, map[string][]byte{}, map[string]*Schema{}}
	for _, pattern := range []string{"history/*.avsc", "*.avsc"} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no schemas in %s: give their folder with --schemas", filepath.Join(folder, pattern))
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			var parsed any
			if err := json.Unmarshal(text, &parsed); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			schema := parse(parsed, "", map[string]*Schema{})
			header := headerOf(schema)
			name := schema.name[strings.LastIndex(schema.name, ".")+1:]
			found.newest[name], found.headers[name] = schema, header
			found.byHeader[string(header)] = schema
		}
	}
	return found, nil
}

func parse(text any, namespace string, named map[string]*Schema) *Schema {
	switch text := text.(type) {
	case string:
		for _, name := range []string{text, namespace + "." + text} {
			if known := named[name]; known != nil {
				return known
			}
		}
		return &Schema{kind: text}
	case []any:
		union := &Schema{kind: "union"}
		for _, branch := range text {
			union.branches = append(union.branches, parse(branch, namespace, named))
		}
		return union
	case map[string]any:
		return parseComplex(text, namespace, named)
	}
	panic(fmt.Sprintf("%v is no schema", text))
}

func parseComplex(text map[string]any, namespace string, named map[string]*Schema) *Schema {
	kind, isName := text["type"].(string)
	if !isName {
		return parse(text["type"], namespace, named)
	}
	if given, ok := text["namespace"].(string); ok {
		namespace = given
	}
	schema := &Schema{kind: kind}
	if name, ok := text["name"].(string); ok {
		schema.name = name
		if !strings.Contains(name, ".") && namespace != "" {
			schema.name = namespace + "." + name
		}
		named[schema.name] = schema
	}
	switch kind {
	case "array":
		schema.items = parse(text["items"], namespace, named)
	case "map":
		schema.items = parse(text["values"], namespace, named)
	case "fixed":
		schema.size = int(text["size"].(float64))
	case "record":
		for _, each := range text["fields"].([]any) {
			field := each.(map[string]any)
			of := parse(field["type"], namespace, named)
			schema.fields = append(schema.fields, Field{field["name"].(string), of, field["default"]})
		}
	}
	return schema
}

// headerOf gives the ten bytes before each record: C3 01 and the CRC-64-AVRO of the parsing canonical form.
func headerOf(schema *Schema) []byte {
	const empty = 0xc15d213aa4d7a795
	crc := uint64(empty)
	for _, b := range []byte(canonical(schema, map[string]bool{})) {
		crc ^= uint64(b)
		for range 8 {
			crc = crc>>1 ^ empty&-(crc&1)
		}
	}
	return binary.LittleEndian.AppendUint64([]byte{0xc3, 0x01}, crc)
}

func canonical(schema *Schema, seen map[string]bool) string {
	if schema.name != "" {
		if seen[schema.name] {
			return strconv.Quote(schema.name)
		}
		seen[schema.name] = true
	}
	switch schema.kind {
	case "union":
		branches := []string{}
		for _, each := range schema.branches {
			branches = append(branches, canonical(each, seen))
		}
		return "[" + strings.Join(branches, ",") + "]"
	case "array":
		return `{"type":"array","items":` + canonical(schema.items, seen) + "}"
	case "map":
		return `{"type":"map","values":` + canonical(schema.items, seen) + "}"
	case "fixed":
		return fmt.Sprintf(`{"name":%q,"type":"fixed","size":%d}`, schema.name, schema.size)
	case "record":
		fields := []string{}
		for _, each := range schema.fields {
			fields = append(fields, fmt.Sprintf(`{"name":%q,"type":%s}`, each.name, canonical(each.schema, seen)))
		}
		return fmt.Sprintf(`{"name":%q,"type":"record","fields":[%s]}`, schema.name, strings.Join(fields, ","))
	}
	return strconv.Quote(schema.kind)
}

// Decode reads a record in single-object encoding.
func (s *Schemas) Decode(value []byte) (found *Record, err error) {
	if len(value) < headerBytes || s.byHeader[string(value[:headerBytes])] == nil {
		return nil, fmt.Errorf("a record of a schema that is not known: %x", value[:min(len(value), headerBytes)])
	}
	defer func() {
		if broken := recover(); broken != nil {
			found, err = nil, fmt.Errorf("no such record: %v", broken)
		}
	}()
	body := &reader{value[headerBytes:]}
	return body.value(s.byHeader[string(value[:headerBytes])]).(*Record), nil
}

// Encode writes a record of the newest schema of this name; fields that are not given have their defaults.
func (s *Schemas) Encode(name string, values map[string]any) []byte {
	header, schema := s.headers[name], s.newest[name]
	for known, older := range s.byHeader { // builds from before know no field that this one does not fill
		if strings.HasSuffix(older.name, "."+name) && older.has(values) {
			header, schema = []byte(known), older
		}
	}
	return appendValue(append([]byte{}, header...), schema, values)
}

// has says whether these are the fields of a record's schema, all of them and no other.
func (s *Schema) has(values map[string]any) bool {
	for _, field := range s.fields {
		if _, given := values[field.name]; !given {
			return false
		}
	}
	return len(s.fields) == len(values)
}

// reader takes values off the front of bytes; it panics where these end too early.
type reader struct{ left []byte }

func (r *reader) take(size int64) []byte {
	if size < 0 || size > int64(len(r.left)) {
		panic(fmt.Sprintf("%d bytes are missing", size-int64(len(r.left))))
	}
	taken := r.left[:size]
	r.left = r.left[size:]
	return taken
}

func (r *reader) long() int64 {
	number, size := binary.Varint(r.left)
	if size <= 0 {
		panic("a number does not end")
	}
	r.take(int64(size))
	return number
}

func (r *reader) value(schema *Schema) any {
	switch schema.kind {
	case "boolean":
		return r.take(1)[0] == 1
	case "int", "long":
		return r.long()
	case "string":
		return string(r.take(r.long()))
	case "bytes":
		return r.take(r.long())
	case "fixed":
		return r.take(int64(schema.size))
	case "union":
		return r.value(schema.branches[r.long()])
	case "array":
		found := []any{}
		r.blocks(func() { found = append(found, r.value(schema.items)) })
		return found
	case "map":
		found := map[string]any{}
		r.blocks(func() {
			key := string(r.take(r.long()))
			found[key] = r.value(schema.items)
		})
		return found
	case "record":
		found := &Record{schema.name[strings.LastIndex(schema.name, ".")+1:], map[string]any{}}
		for _, field := range schema.fields {
			found.values[field.name] = r.value(field.schema)
		}
		return found
	case "null":
		return nil
	}
	panic("a value of type " + schema.kind)
}

func (r *reader) blocks(item func()) {
	for count := r.long(); count != 0; count = r.long() {
		if count < 0 { // then the size in bytes follows
			r.long()
			count = -count
		}
		for range count {
			item()
		}
	}
}

// Command is a record within a union: which one, and its fields.
type Command struct {
	name   string
	values map[string]any
}

func appendValue(to []byte, schema *Schema, value any) []byte {
	switch schema.kind {
	case "boolean":
		if value.(bool) {
			return append(to, 1)
		}
		return append(to, 0)
	case "int", "long":
		switch number := value.(type) {
		case float64: // a default
			return binary.AppendVarint(to, int64(number))
		case int:
			return binary.AppendVarint(to, int64(number))
		}
		return binary.AppendVarint(to, value.(int64))
	case "string":
		return append(binary.AppendVarint(to, int64(len(value.(string)))), value.(string)...)
	case "bytes":
		if text, ok := value.(string); ok {
			value = []byte(text)
		}
		return append(binary.AppendVarint(to, int64(len(value.([]byte)))), value.([]byte)...)
	case "array":
		return append(appendItems(to, schema.items, value), 0)
	case "map":
		if len(value.(map[string]any)) > 0 {
			panic("maps are not written here")
		}
		return append(to, 0)
	case "record":
		for _, field := range schema.fields {
			given, ok := value.(map[string]any)[field.name]
			if !ok {
				given = field.fallback
			}
			to = appendValue(to, field.schema, given)
		}
		return to
	case "union":
		command := value.(Command)
		for at, branch := range schema.branches {
			if branch.name == "stele."+command.name {
				return appendValue(binary.AppendVarint(to, int64(at)), branch, command.values)
			}
		}
	}
	panic(fmt.Sprintf("%v cannot be written as %s", value, schema.kind))
}

func appendItems(to []byte, schema *Schema, value any) []byte {
	items := []any{}
	switch value := value.(type) {
	case []string:
		for _, each := range value {
			items = append(items, each)
		}
	case []int64:
		for _, each := range value {
			items = append(items, each)
		}
	case []map[string]any:
		for _, each := range value {
			items = append(items, each)
		}
	case []any:
		items = value
	}
	if len(items) > 0 {
		to = binary.AppendVarint(to, int64(len(items)))
	}
	for _, each := range items {
		to = appendValue(to, schema, each)
	}
	return to
}
