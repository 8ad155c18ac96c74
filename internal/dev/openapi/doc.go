// Package openapi writes docs/openapi.yaml: paths from the routes of the daemon, schemas from the types of package api and
// from the comments in its source.
package openapi
