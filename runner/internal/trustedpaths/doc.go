// Package trustedpaths opens directories in a filesystem that hostile users can write to, without following their links.
//
// The package follows a link in a path only if root or PID 1's own user owns both the link and its directory, and no
// other user can replace entries of the directory. So it follows the image's /app -> /srv/app, but no link that the
// agent created in its home.
package trustedpaths
