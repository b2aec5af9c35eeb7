package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Import gives containerd an image of that name which has a static program and nothing else in it, as Dockerfile makes one of
// oakum. Pods run it with ImagePullPolicy IfNotPresent or Never.
func (c *Cluster) Import(ctx context.Context, image, program string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("making the image %s: %w", image, err)
	}
	tarball, err := archive(image, filepath.Base(program), content)
	if err != nil {
		return fmt.Errorf("making the image %s: %w", image, err)
	}
	platform := "linux/" + runtime.GOARCH
	cmd := exec.CommandContext(ctx, c.program("ctr"), "--address", filepath.Join(c.sockets(), "containerd.sock"), "--namespace", "k8s.io",
		"images", "import", "--local", "--snapshotter", "native", "--platform", platform, "-")
	cmd.Stdin = bytes.NewReader(tarball)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("importing the image %s: %w: %s", image, err, out)
	}
	return nil
}

// archive returns an image as docker save writes one, whose user is nobody in particular.
func archive(image, name string, program []byte) ([]byte, error) {
	layer, err := pack(entry{name, program, 0o755})
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/" + name}, "User": "65532:65532"},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	return pack(entry{"manifest.json", manifest, 0o644}, entry{"config.json", config, 0o644}, entry{"layer.tar", layer, 0o644})
}

// entry is a file in an archive.
type entry struct {
	name    string
	content []byte
	mode    int64
}

func pack(entries ...entry) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Name: e.name, Size: int64(len(e.content)), Mode: e.mode}); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
