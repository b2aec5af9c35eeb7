// Command plugin is a node's CNI plugin: it asks the IPAM plugin for addresses and gives them back, and touches no link.
// It logs each call, and does wrong what tests ask for, by files in the folder that its configuration names.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/oakum-dev/oakum/test/e2e/cluster/cni"
)

// network is what the plugin reads of a network's configuration.
type network struct {
	Version string     `json:"cniVersion"`
	Name    string     `json:"name"`
	Type    string     `json:"type"`
	Folder  cni.Folder `json:"folder"`
}

// result is an IPAM plugin's answer to ADD, as far as it is looked at.
type result struct {
	Version    string           `json:"cniVersion"`
	Interfaces []map[string]any `json:"interfaces"`
	IPs        []map[string]any `json:"ips"`
	Routes     []any            `json:"routes,omitempty"`
	DNS        map[string]any   `json:"dns,omitempty"`
}

func main() {
	answer, err := serve(os.Stdin)
	if err != nil {
		answer, _ = json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 100, "msg": err.Error()})
	}
	_, _ = os.Stdout.Write(answer)
	if err != nil {
		os.Exit(1)
	}
}

func serve(in io.Reader) (answer []byte, err error) {
	command := os.Getenv("CNI_COMMAND")
	if command == "VERSION" {
		return []byte(`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`), nil
	}
	var n network
	if err := json.NewDecoder(in).Decode(&n); err != nil {
		return nil, fmt.Errorf("decoding the network: %w", err)
	}
	if command != "ADD" && command != "DEL" {
		return nil, nil
	}
	call := cni.Call{Command: command, Container: os.Getenv("CNI_CONTAINERID"), Begin: time.Now()}
	args := map[string]string{}
	for pair := range strings.SplitSeq(os.Getenv("CNI_ARGS"), ";") {
		name, value, _ := strings.Cut(pair, "=")
		args[name] = value
	}
	call.Pod, call.UID = args["K8S_POD_NAMESPACE"]+"/"+args["K8S_POD_NAME"], args["K8S_POD_UID"]
	if err := n.Folder.Log(call); err != nil {
		return nil, err
	}
	if command == "ADD" {
		answer, call.Addresses, err = add(n, call.Container)
	} else {
		err = del(n, call.Container)
	}
	call.End = time.Now()
	if err != nil {
		call.Error = err.Error()
	}
	return answer, errors.Join(err, n.Folder.Log(call))
}

// add returns the IPAM plugin's answer with the pod's interface in it, and its addresses.
func add(n network, container string) (answer []byte, addresses []string, err error) {
	ipam, err := n.Folder.IPAM(container)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the network: %w", err)
	}
	if err := n.Folder.Keep(container, ipam); err != nil {
		return nil, nil, fmt.Errorf("remembering the network: %w", err)
	}
	out, err := n.delegate(ipam)
	if err != nil {
		return nil, nil, err
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, nil, fmt.Errorf("decoding the IPAM plugin's answer: %w", err)
	}
	r.Interfaces = []map[string]any{{"name": os.Getenv("CNI_IFNAME"), "sandbox": os.Getenv("CNI_NETNS")}}
	for _, ip := range r.IPs {
		ip["interface"] = 0
		addresses = append(addresses, fmt.Sprint(ip["address"]))
	}
	if n.Folder.Has(cni.FailAdd) {
		return nil, addresses, errors.New("failing this ADD, as a test asked for")
	}
	answer, err = json.Marshal(r)
	return answer, addresses, err
}

func del(n network, container string) error {
	if n.Folder.Has(cni.FailDel) {
		return errors.New("failing this DEL, as a test asked for")
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n.Folder.Has(cni.HoldDel) {
		<-tick.C
	}
	ipam, err := n.Folder.IPAM(container)
	if err != nil {
		return fmt.Errorf("reading the network: %w", err)
	}
	if _, err := n.delegate(ipam); err != nil {
		return err
	}
	return n.Folder.Forget(container)
}

// delegate calls the IPAM plugin with the environment of this call, and returns its answer.
func (n network) delegate(ipam json.RawMessage) ([]byte, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(ipam, &kind); err != nil {
		return nil, fmt.Errorf("decoding the section ipam: %w", err)
	}
	in, err := json.Marshal(map[string]any{"cniVersion": n.Version, "name": n.Name, "type": n.Type, "ipam": ipam})
	if err != nil {
		return nil, fmt.Errorf("encoding the network: %w", err)
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), kind.Type))
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("calling %s: %w: %s", kind.Type, err, bytes.TrimSpace(out))
	}
	return out, nil
}
