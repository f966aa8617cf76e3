//go:build tools

// Package helm pins the packager that the tests install the chart with.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
