//go:build tools

// Package etcd names the command that is built from the pins beside it, so that `go mod tidy` keeps it.
package etcd

import _ "go.etcd.io/etcd/server/v3"
