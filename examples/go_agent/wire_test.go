package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const schemasFolder = "../../schemas"

func TestFingerprintsAreThoseOfTheHistory(t *testing.T) {
	schemas, err := loadSchemas(schemasFolder)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(schemasFolder, "history", "*.avsc"))
	for _, file := range files {
		name := filepath.Base(file)
		fingerprint := name[len(name)-len("0123456789abcdef.avsc") : len(name)-len(".avsc")]
		found := false
		for header := range schemas.byHeader {
			found = found || fmt.Sprintf("%x", header[2:]) == fingerprint
		}
		if !found {
			t.Errorf("no schema has the fingerprint of %s", name)
		}
	}
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	schemas, err := loadSchemas(schemasFolder)
	if err != nil {
		t.Fatal(err)
	}
	written := schemas.Encode("Order", map[string]any{
		"node_id": "n1", "term": int64(-3), "index": math.MinInt64, "kind": "stream", "epoch": 1 << 40,
		"session": "s", "request_id": "r", "log_id": []byte{0, 255},
	})
	read, err := schemas.Decode(written)
	if err != nil || read.Int("term") != -3 || read.Int("index") != math.MinInt64 || read.Int("epoch") != 1<<40 {
		t.Fatal(read, err)
	}
	for cut := range written { // bytes that end too early are an error, never a panic
		if _, err := schemas.Decode(written[:cut]); err == nil {
			t.Error("read from", cut, "bytes")
		}
	}
}

func TestColumns(t *testing.T) {
	if found := column([]byte{2, 0xff, 0xff, 1, 0}); !slices.Equal(found, []int64{-1, 1}) {
		t.Error(found)
	}
	if found := column([]byte{1, 0x80, 0x7f}); !slices.Equal(found, []int64{-128, 127}) {
		t.Error(found)
	}
}

func TestALineThatWasCutIsForgottenAndOthersStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	store, err := openStore(path)
	if err != nil {
		t.Fatal(err)
	}
	store.write(&Line{Data: "d", Token: 1, Key: []byte("a"), Value: []byte("new")})
	store.write(&Line{Data: "d", Token: 1, Key: []byte("a"), Value: []byte("mid")}) // older: the greater one stands
	store.write(&Line{Data: "d", Token: 2, Key: []byte("b"), Value: []byte("x")})
	store.sync()
	size, _ := store.file.Seek(0, 1)
	if err := os.Truncate(path, size-3); err != nil {
		t.Fatal(err)
	}
	store, err = openStore(path)
	if err != nil {
		t.Fatal(err)
	}
	store.write(&Line{Data: "d", Token: 3, Key: []byte("c"), Value: []byte("y")})
	store, err = openStore(path)
	if err != nil || string(store.rows["d"][Key{1, "a"}]) != "new" || len(store.rows["d"]) != 2 {
		t.Error(store.rows, err)
	}
}

func TestPagesAreBoundedInRowsAndBytes(t *testing.T) {
	rows := func(count, bytes int) []*Line {
		made := []*Line{}
		for at := range count {
			made = append(made, &Line{Token: int64(count - at), Key: []byte("k"), Value: make([]byte, bytes)})
		}
		return made
	}
	for _, each := range []struct{ count, bytes, given int }{
		{0, 0, 0}, {1, 3 * pageBytes, 1}, {pageRows, 1, pageRows}, {pageRows + 1, 1, pageRows},
		{3, pageBytes - 1, 1}, {5, pageBytes / 4, 3},
	} {
		page := pageOf(rows(each.count, each.bytes))
		if len(page.Rows) != each.given || page.More != (each.given < each.count) {
			t.Error(each, len(page.Rows), page.More)
		}
		if len(page.Rows) > 0 && page.Rows[0].Token != 1 {
			t.Error("not the first rows")
		}
	}
}

func TestTheEpochThatCreatesDataIsOnTheDiskOnceItIsApplied(t *testing.T) {
	identity, err := openIdentity(filepath.Join(t.TempDir(), "n1"), "n1", "demo")
	if err != nil {
		t.Fatal(err)
	}
	node := &Node{state: newState(), identity: identity, open: true, changed: make(chan struct{})}
	epoch := func(facts ...any) *Record {
		return &Record{"Epoch", map[string]any{"state_id": make([]byte, 16), "facts": facts}}
	}
	table := func(truncated int64) *Record {
		row := &Record{"Table", map[string]any{"table_id": "t", "truncated_version": truncated}}
		return &Record{"TableChanged", map[string]any{"table": row}}
	}
	for _, each := range []struct {
		epoch *Record
		noted int64
	}{
		{epoch(), 0}, {epoch(table(0)), 2}, {epoch(table(0)), 2}, {epoch(table(7)), 4}, {epoch(), 4},
	} {
		if err := node.onEpoch(each.epoch); err != nil || identity.Epoch != each.noted {
			t.Error(node.state.epoch, identity.Epoch, each.noted, err)
		}
	}
}
