package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// The store: all rows in memory, and each effect as a line of a file. Of two values the greater one stands: they
// begin with their client's timestamp.

type Key struct {
	Token int64
	Key   string
}

type Line struct {
	Data    string `json:"d"`
	Token   int64  `json:"t"`
	Key     []byte `json:"k"`
	Value   []byte `json:"v,omitempty"`
	Deleted bool   `json:"x,omitempty"`
}

// Store is used under the node's lock, but for sync. An error of the disk ends the process.
type Store struct {
	rows map[string]map[Key][]byte
	file *os.File

	syncing sync.Mutex
	dirty   atomic.Bool
}

func openStore(path string) (*Store, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	store := &Store{rows: map[string]map[Key][]byte{}, file: file}
	whole, lines := int64(0), bufio.NewReader(file)
	for {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // what follows the last whole line was never acknowledged
		}
		var line Line
		if err == nil {
			err = json.Unmarshal(text, &line)
		}
		if err != nil {
			return nil, err
		}
		store.effect(&line)
		whole += int64(len(text))
	}
	if err := file.Truncate(whole); err != nil {
		return nil, err
	}
	if _, err := file.Seek(whole, io.SeekStart); err != nil {
		return nil, err
	}
	return store, errors.Join(file.Sync(), syncFolder(filepath.Dir(path)))
}

func (s *Store) effect(line *Line) {
	key, rows := Key{line.Token, string(line.Key)}, s.rows[line.Data]
	if line.Deleted {
		delete(rows, key)
		if len(rows) == 0 {
			delete(s.rows, line.Data)
		}
		return
	}
	if rows == nil {
		rows = map[Key][]byte{}
		s.rows[line.Data] = rows
	}
	if bytes.Compare(line.Value, rows[key]) > 0 {
		rows[key] = line.Value
	}
}

// write takes effects; they are on the disk after the next sync.
func (s *Store) write(lines ...*Line) {
	text := []byte{}
	for _, line := range lines {
		encoded, err := json.Marshal(line)
		if err != nil {
			log.Fatal(err)
		}
		text = append(append(text, encoded...), '\n')
		s.effect(line)
	}
	if _, err := s.file.Write(text); err != nil {
		log.Fatal("the store's file cannot be written: ", err)
	}
	s.dirty.Store(true)
}

// sync returns once all that was written before is on the disk. Not under the node's lock: it takes long.
func (s *Store) sync() {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.dirty.Swap(false) {
		if err := s.file.Sync(); err != nil {
			log.Fatal("what was written may be lost: ", err) // to try again would say that it is there
		}
	}
}

// inRange lists rows of (start, end].
func (s *Store) inRange(data string, start, end int64) []*Line {
	found := []*Line{}
	for key, value := range s.rows[data] {
		if start < key.Token && (end == minToken || key.Token <= end) {
			found = append(found, &Line{Data: data, Token: key.Token, Key: []byte(key.Key), Value: value})
		}
	}
	return found
}

func (s *Store) sizeOf(data string, start, end int64) int64 {
	size := 0
	for _, row := range s.inRange(data, start, end) {
		size += len(row.Key) + len(row.Value)
	}
	return int64(size)
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
