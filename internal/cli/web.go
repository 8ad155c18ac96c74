package cli

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// onWebListen tells how to set the page's address.
const onWebListen = "'guestprobed --web-listen 127.0.0.1:7777' serves the page there"

func webCommand(a *app) command.Spec {
	noOpen := false
	return command.Spec{
		Use:   "web",
		Short: "Open the guest's page in the browser",
		Long: `web has the daemon serve a page on loopback, prints its address and opens it, by xdg-open, where
there is a display. The page shows the guest, its console, probes, events, charts and flame graphs, and attaches,
pauses and runs scripts, as guestprobe does.

The address is good for one browser, once: it has a token that the page changes into a cookie. Its windows
need no other. guestprobed --web-listen says where the page is served; over ssh,
'ssh -L 7777:127.0.0.1:7777 HOST' brings --web-listen 127.0.0.1:7777 here.`,
		Example: "  guestprobe web --no-open",
		Args:    command.ArgsBetween(0, 0, ""),
		Cures: map[string]string{
			"--port": onWebListen, "--listen": onWebListen, "--addr": onWebListen, "--address": onWebListen, "-p": onWebListen,
		},
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&noOpen, "no-open", noOpen, "only print the address")
		},
		Run: show(a, func(ctx context.Context, _ *command.Run, c *remote.Client) (api.Page, error) {
			return c.Page(ctx)
		}, func(r *command.Run, p api.Page) error {
			if err := r.Print("%s\n", p.URL); err != nil || noOpen || r.Getenv("DISPLAY") == "" && r.Getenv("WAYLAND_DISPLAY") == "" {
				return err
			}
			path, err := exec.LookPath("xdg-open")
			if err != nil {
				r.Note("There is no xdg-open: open the address yourself.")
				return nil
			}
			file, err := pageFile(r.Getenv, p.URL)
			if err != nil {
				r.Note("The address is not opened: %v", err)
				return nil
			}
			// It passes the file to a running browser, or starts one and may not exit: do not wait.
			cmd := exec.Command(path, file)
			if err := cmd.Start(); err != nil {
				r.Note("The address could not be opened: %v", err)
				return nil
			}
			return cmd.Process.Release()
		}),
	}
}

// pageFile writes a file that redirects to the page's address. The address must not be an argument of the browser, because
// all users of the machine can see arguments.
func pageFile(getenv func(string) string, url string) (string, error) {
	dir := getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "guestprobe")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
	}
	f, err := os.CreateTemp(dir, "page-*.html") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(f, "<!DOCTYPE html><meta http-equiv=\"refresh\" content=\"0;url=%s\"><title>guestprobe</title>\n", html.EscapeString(url))
	path := filepath.Join(dir, "guestprobe-page.html")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return path, err
}
