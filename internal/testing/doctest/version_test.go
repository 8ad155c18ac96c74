package doctest

import (
	"archive/zip"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// TestVersionRecorded: a program that was built with VERSION says so, and from which commit.
func TestVersionRecorded(t *testing.T) {
	t.Parallel()
	const version = "7.8.9+1.gabcdef"
	dir := t.TempDir()
	plan := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-n", "build", "VERSION="+version, "BIN="+dir, "PROGRAMS=./cmd/guestprobe")
	plan.Dir = root
	plan.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") }) // of the make that runs this
	command, err := plan.Output()
	if err != nil {
		t.Fatalf("%v: %v", plan, err)
	}
	// Without -trimpath the packages that this test run has compiled are used again.
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(string(command), "-trimpath", "", 1))
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	head := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD")
	head.Dir = root
	commit, err := head.Output()
	if err != nil { // a tree without git: make records no commit
		commit = nil
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "guestprobe"), "version", "--format", "json", "--socket", filepath.Join(dir, "none")).Output()
	var said struct {
		Client struct{ Version, Git string }
	}
	if jsonErr := json.Unmarshal(out, &said); jsonErr != nil {
		t.Fatalf("%q, %v: %v", out, err, jsonErr)
	}
	if said.Client.Version != version || said.Client.Git != strings.TrimSpace(string(commit)) {
		t.Errorf("version --json says %+v, want %s of commit %s", said.Client, version, commit)
	}
}

// TestInstall runs the README's go install with a module proxy that serves this
// checkout as a release. Other modules come from the local module cache. In make test the
// go command only prints what it would run: all packages are loaded from the proxy, but
// not compiled again.
func TestInstall(t *testing.T) {
	t.Parallel()
	const version = "v1.999.0"
	proxy, bin := t.TempDir(), t.TempDir()
	release := filepath.Join(proxy, module, "@v")
	if err := os.MkdirAll(release, 0o755); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"list": version + "\n", version + ".info": `{"Version": "` + version + `"}`, version + ".mod": string(mod)} {
		if err := os.WriteFile(filepath.Join(release, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	zipCheckout(t, filepath.Join(release, version+".zip"), module+"@"+version+"/")
	cache, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(documents(t)["README.md"], "\n    go install ")
	packages, _, ok := strings.Cut(rest, "\n")
	if !ok {
		t.Fatal("README.md has no go install")
	}
	args := kvmtest.ChooseSize([]string{"install", "-n"}, []string{"install"})
	install := exec.CommandContext(t.Context(), "go", append(args, strings.Fields(packages)...)...)
	install.Dir = proxy
	install.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -modcacherw", "GOSUMDB=off", "GONOPROXY=none", "GOBIN="+bin, "GOMODCACHE="+t.TempDir(),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(strings.TrimSpace(string(cache)), "cache/download"))
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", install, err, out)
	} else if len(args) > 1 {
		for _, name := range []string{"guestprobe", "guestprobed"} {
			if !strings.Contains(string(out), filepath.Join(bin, name)) {
				t.Errorf("%s is not installed", name)
			}
		}
		return
	}
	if _, err := os.Stat(filepath.Join(bin, "guestprobed")); err != nil {
		t.Error(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "guestprobe"), "version", "--socket", filepath.Join(bin, "none")).Output()
	if !strings.Contains(string(out), version) {
		t.Errorf("guestprobe version says %q (%v), want %s", out, err, version)
	}
}

// zipCheckout writes the checkout's files with prefix before their names, as a module's archive has them: without the
// results of builds, and without modules below it.
func zipCheckout(t *testing.T, file, prefix string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := zip.NewWriter(f)
	err = fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "bin" || path == "build" || path == ".git"):
			return fs.SkipDir
		case d.IsDir() && path != ".":
			if _, err := os.Stat(filepath.Join(root, path, "go.mod")); err == nil {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return err
		}
		part, err := w.Create(prefix + path)
		if err == nil {
			_, err = part.Write(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
