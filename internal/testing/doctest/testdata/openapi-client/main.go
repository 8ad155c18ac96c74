// The program lists the probes of a daemon, with a client that oapi-codegen has
// generated from docs/openapi.yaml.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"

	"example.org/openapi-client/daemon"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi-client:", err)
		os.Exit(1)
	}
}

// run writes the probes of the daemon at a socket as one JSON value.
func run(ctx context.Context, socket string) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	c, err := daemon.NewClientWithResponses("http://guestprobed", daemon.WithHTTPClient(&http.Client{Transport: transport}))
	if err != nil {
		return err
	}
	none, err := c.GetProbeWithResponse(ctx, "no_such_probe")
	if err != nil {
		return err
	}
	if none.JSON404 == nil || none.JSON404.Error.Code != "probe_not_found" {
		return fmt.Errorf("a probe that does not exist: %s, %s", none.Status(), none.Body)
	}
	list, err := c.ListProbesWithResponse(ctx, nil)
	if err != nil {
		return err
	}
	if list.JSON200 == nil {
		return fmt.Errorf("list: %s: %s", list.Status(), list.Body)
	}
	return json.NewEncoder(os.Stdout).Encode(list.JSON200)
}
