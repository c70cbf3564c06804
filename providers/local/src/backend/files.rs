//! The files `resolv.conf` and `hostname` of a pod.

use std::{fmt::Write as _, fs, io, os::unix::fs::OpenOptionsExt, path::Path};

use vk_pod_engine::backend::Dns;

/// The text of `resolv.conf`, in the order in which containerd writes it.
pub(super) fn resolv_conf(dns: &Dns) -> String {
    // Writing to a `String` cannot fail.
    let mut text = String::new();
    if !dns.searches.is_empty() {
        let _ = writeln!(text, "search {}", dns.searches.join(" "));
    }
    for server in &dns.servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    if !dns.options.is_empty() {
        let _ = writeln!(text, "options {}", dns.options.join(" "));
    }
    text
}

/// The host's `resolv.conf`; empty if it has none.
pub(super) fn host_resolv_conf() -> String {
    fs::read_to_string("/etc/resolv.conf").unwrap_or_default()
}

/// Writes a file that every user in the pod can read.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::{io::Write as _, os::unix::fs::PermissionsExt};
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(text.as_bytes())?;
    // Regardless of the umask.
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_has_the_format_of_resolvers() {
        let dns = Dns {
            servers: vec!["10.0.0.10".into(), "1.1.1.1".into()],
            searches: vec!["a.svc".into(), "svc".into()],
            options: vec!["ndots:5".into()],
        };
        let expected = "search a.svc svc\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n";
        assert_eq!(resolv_conf(&dns), expected);
        assert_eq!(resolv_conf(&Dns::default()), "");
    }
}
