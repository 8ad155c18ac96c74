package doctest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestGeneratedClient validates docs/openapi.yaml, makes a Go client from it with
// oapi-codegen and its default options, and lists the probes of a daemon with that client:
// they are the probes of guestprobe list.
//
// The generator and its dependencies are of a module of their own in testdata.
func TestGeneratedClient(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/openapi-client")); err != nil {
		t.Fatal(err)
	}
	kvmtest.RequireModule(t, dir)
	document, err := filepath.Abs(root + "/docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "daemon"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"run", "./check", document},
		{"tool", "oapi-codegen", "-generate", "types,client", "-package", "daemon", "-o", "daemon/daemon.gen.go", document},
		{"build", "-o", "openapi-client", "."},
	} {
		cmd := exec.CommandContext(patience.Context(t), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOPROXY=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %q: %v\n%s", args, err, out)
		}
	}
	kvmtest.Require(t)
	var todo []step
	for _, command := range []string{
		"guestprobed --vcpus 2 --tick 100ms &",
		"guestprobe optimization off", // a probe that gets its jump between the two lists would differ
		"guestprobe attach 'p:reads vfs_read fd=%di:s32' 'r:results vfs_read got=$retval:s64' 'p:hot user_hot' --filter 'cpu == 0'",
		"guestprobe guest pause", // so that counts stay
		"guestprobe list --format json >list.json",
		"./openapi-client \"$GUESTPROBE_SOCKET\" >client.json",
	} {
		todo = append(todo, step{where: "openapi.yaml", command: command})
	}
	play(t, dir, todo, numbers)
	var want, got any
	for name, v := range map[string]any{"list.json": &want, "client.json": &got} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the generated client lists other probes than guestprobe list (-guestprobe +client):\n%s", diff)
	}
}
