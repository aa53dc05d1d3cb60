"""Commands on task directories: init, check, build, package.

init                `init` and its template
check, check_view   `check` and what it prints
build               `build`
package, publish    `package`: manifests; pushes a bundle
"""
