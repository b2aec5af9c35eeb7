// Package cni is what a node's CNI plugin and the tests tell each other, through files in one folder.
package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Fault is what the plugin does wrong, on purpose, until it is healed.
type Fault string

const (
	// FailAdd lets ADD fail after the IPAM plugin handed out addresses.
	FailAdd Fault = "fail-add"
	// FailDel lets DEL fail before the IPAM plugin hears of it.
	FailDel Fault = "fail-del"
	// HoldDel lets DEL wait, before the IPAM plugin hears of it, until the fault is healed.
	HoldDel Fault = "hold-del"
)

// Folder is the path of the folder between the plugin and the tests.
type Folder string

// Inject lets the plugin have the fault from its next call on.
func (f Folder) Inject(fault Fault) error { return os.WriteFile(f.path(string(fault)), nil, 0o600) }

// Heal takes the fault away. It is no error if it is not there.
func (f Folder) Heal(fault Fault) error { return ignore(os.Remove(f.path(string(fault)))) }

// Has tells whether the plugin has the fault.
func (f Folder) Has(fault Fault) bool {
	_, err := os.Stat(f.path(string(fault)))
	return err == nil
}

// SetIPAM makes this the section ipam of the networks of pods that are yet to start.
func (f Folder) SetIPAM(ipam json.RawMessage) error {
	fresh := f.path("ipam.new")
	if err := os.WriteFile(fresh, ipam, 0o600); err != nil {
		return fmt.Errorf("writing the network: %w", err)
	}
	return os.Rename(fresh, f.path("ipam.json"))
}

// IPAM returns the section ipam that the container was added with, or the one that the next will be added with.
func (f Folder) IPAM(container string) (json.RawMessage, error) {
	ipam, err := os.ReadFile(f.path("added-" + container))
	if errors.Is(err, fs.ErrNotExist) {
		ipam, err = os.ReadFile(f.path("ipam.json"))
	}
	return ipam, err
}

// Keep remembers which section ipam a container is added with.
func (f Folder) Keep(container string, ipam json.RawMessage) error {
	return os.WriteFile(f.path("added-"+container), ipam, 0o600)
}

// Forget forgets it. It is no error if nothing is remembered.
func (f Folder) Forget(container string) error {
	return ignore(os.Remove(f.path("added-" + container)))
}

// Call is one call of the plugin.
type Call struct {
	// Command is ADD or DEL.
	Command string `json:"command"`
	// Container is the sandbox's id; Whereabouts' records have it too.
	Container string `json:"container"`
	// Pod is its pod, as namespace/name, and UID the pod's.
	Pod string `json:"pod"`
	UID string `json:"uid"`
	// Begin is when the plugin was called. For DEL the sandbox's processes have ended before.
	Begin time.Time `json:"begin"`
	// End is when it answered; zero if it has not.
	End time.Time `json:"end,omitzero"`
	// Addresses are what ADD answered, each with the length of its prefix.
	Addresses []string `json:"addresses,omitempty"`
	// Error is why it failed; empty if it did not.
	Error string `json:"error,omitempty"`
}

// Log adds a call to the log: once when it begins, and once more when it has ended.
func (f Folder) Log(call Call) error {
	line, err := json.Marshal(call)
	if err != nil {
		return fmt.Errorf("encoding a call: %w", err)
	}
	log, err := os.OpenFile(f.path("calls.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of calls: %w", err)
	}
	_, err = log.Write(append(line, '\n'))
	return errors.Join(err, log.Close())
}

// Calls returns all calls, in the order in which they began.
func (f Folder) Calls() ([]Call, error) {
	log, err := os.ReadFile(f.path("calls.jsonl"))
	if err = ignore(err); err != nil {
		return nil, fmt.Errorf("reading the log of calls: %w", err)
	}
	var calls []Call
	type key struct {
		command, container string
		begin              int64
	}
	places := map[key]int{}
	for line := range bytes.Lines(log) {
		var call Call
		if err := json.Unmarshal(line, &call); err != nil {
			return nil, fmt.Errorf("reading the log of calls: %w", err)
		}
		k := key{call.Command, call.Container, call.Begin.UnixNano()}
		if place, known := places[k]; known {
			calls[place] = call
			continue
		}
		places[k] = len(calls)
		calls = append(calls, call)
	}
	return calls, nil
}

func (f Folder) path(name string) string { return filepath.Join(string(f), name) }

func ignore(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
