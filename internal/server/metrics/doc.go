// Package metrics serves the counts of a daemon and its guest in the form that
// Prometheus scrapes. It reads the counts when it is scraped, and keeps none.
package metrics
