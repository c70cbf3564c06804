//! The user and groups of a container's process, looked up in its image.

use std::{fs::File, io::Read, os::fd::AsFd, path::Path};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};
use vk_pod_engine::backend::{ContainerSecurity, SupplementalGroupsPolicy};
use vk_provider::{Error, Result};

/// Maximum size of `/etc/passwd`.
const MAX_FILE: u64 = 4 << 20;

/// The user and groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups, including the primary one.
    pub groups: Vec<u32>,
}

// === impl ProcessIdentity ===

impl ProcessIdentity {
    /// Looks up the user in a root filesystem. Links cannot leave it.
    pub fn find(rootfs: &Path, security: &ContainerSecurity, image: &str) -> Result<Self> {
        let text = |path: &str| read(rootfs, path).map_err(|error| unreadable(rootfs, path, error));
        Self::from_files(&text("etc/passwd")?, &text("etc/group")?, security, image)
    }

    /// Looks up the user in the contents of `/etc/passwd` and `/etc/group`.
    pub fn from_files(passwd: &str, group: &str, security: &ContainerSecurity, image: &str) -> Result<Self> {
        let (user, own_group) = requested(security, image)?;
        let entries = passwd.lines().filter_map(User::parse);
        let number = user.parse::<u32>().ok();
        // A number is a UID, even if a user has that name.
        let known = entries.clone().find(|entry| number.map_or(entry.name == user, |uid| entry.uid == uid));
        let uid = match (number, &known) {
            (Some(uid), _) => uid,
            (None, Some(known)) => known.uid,
            (None, None) => {
                return Err(Error::invalid(format!(
                    "unable to find user {user}: no matching entries in passwd file"
                )));
            }
        };
        let groups: Vec<Group<'_>> = group.lines().filter_map(Group::parse).collect();
        let gid = match own_group {
            None => known.as_ref().map_or(0, |known| known.gid),
            Some(name) => match name.parse() {
                Ok(gid) => gid,
                Err(_) => groups.iter().find(|group| group.name == name).map(|group| group.gid).ok_or_else(
                    || {
                        Error::invalid(format!(
                            "unable to find group {name}: no matching entries in group file"
                        ))
                    },
                )?,
            },
        };
        let mut all = vec![gid];
        if security.supplemental_groups_policy == SupplementalGroupsPolicy::Merge
            && let Some(known) = &known
        {
            all.extend(groups.iter().filter(|group| group.has(known.name)).map(|group| group.gid));
        }
        for more in &security.supplemental_groups {
            all.push(id("supplemental group", *more)?);
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|gid| seen.insert(*gid));
        Ok(Self { uid, gid, groups: all })
    }
}

/// The requested user and group: the pod's number, else the pod's name, else the image's user.
fn requested(security: &ContainerSecurity, image: &str) -> Result<(String, Option<String>)> {
    let group = security.group.map(|group| id("group", group).map(|group| group.to_string())).transpose()?;
    let user = match (security.user, &security.username) {
        (Some(user), _) => id("user", user)?.to_string(),
        (None, Some(name)) if !name.is_empty() => name.clone(),
        (None, _) if group.is_some() => {
            return Err(Error::invalid("user group is specified without user"));
        }
        (None, _) => {
            let (user, group) = image.split_once(':').unwrap_or((image, ""));
            let user = if user.is_empty() { "0" } else { user };
            return Ok((user.to_owned(), Some(group.to_owned()).filter(|group| !group.is_empty())));
        }
    };
    Ok((user, group))
}

fn id(what: &str, number: i64) -> Result<u32> {
    u32::try_from(number)
        .map_err(|_| Error::invalid(format!("{what} id {number} is not between 0 and {}", u32::MAX)))
}

fn read(rootfs: &Path, path: &str) -> rustix::io::Result<String> {
    let root = rustix::fs::open(rootfs, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = match rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), inside) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    if !rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file() {
        return Ok(String::new());
    }
    let mut content = Vec::new();
    File::from(file)
        .take(MAX_FILE)
        .read_to_end(&mut content)
        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn unreadable(rootfs: &Path, path: &str, error: rustix::io::Errno) -> Error {
    Error::internal(format!("read /{path} of the image at {}: {error}", rootfs.display())).caused_by(error)
}

#[derive(Clone, Copy)]
struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

impl<'a> User<'a> {
    /// Parses a line of `/etc/passwd`; malformed lines are ignored, as usual.
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Self { name, uid, gid })
    }
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl<'a> Group<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some(Self { name, gid, members: fields.next().unwrap_or_default() })
    }

    fn has(&self, user: &str) -> bool {
        self.members.split(',').any(|member| member.trim() == user)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# a comment\nbroken\nweb:x:1000:1001::/home/web:/bin/sh\n1234:x:7:8::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:1001:\nstaff:x:50:web,other\nwheel:x:10:root\n";

    fn find(security: &ContainerSecurity, image: &str) -> Result<ProcessIdentity, String> {
        ProcessIdentity::from_files(PASSWD, GROUP, security, image)
            .map_err(|error| error.message().to_owned())
    }

    fn identity(uid: u32, gid: u32, groups: &[u32]) -> ProcessIdentity {
        ProcessIdentity { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn an_images_user_is_a_name_or_number_with_an_optional_group() {
        let none = ContainerSecurity::default();
        assert_eq!(find(&none, "").unwrap(), identity(0, 0, &[0, 10]));
        assert_eq!(find(&none, "web").unwrap(), identity(1000, 1001, &[1001, 50]));
        assert_eq!(find(&none, "1000").unwrap(), identity(1000, 1001, &[1001, 50]));
        assert_eq!(find(&none, "web:staff").unwrap(), identity(1000, 50, &[50]));
        assert_eq!(find(&none, "web:77").unwrap(), identity(1000, 77, &[77, 50]));
        assert_eq!(find(&none, "4711").unwrap(), identity(4711, 0, &[0]));
        assert_eq!(find(&none, "1234").unwrap(), identity(1234, 0, &[0]), "a number is not a name");
    }

    #[test]
    fn the_pod_overrides_the_image() {
        let security =
            ContainerSecurity { user: Some(1000), group: Some(3000), ..ContainerSecurity::default() };
        assert_eq!(find(&security, "root").unwrap(), identity(1000, 3000, &[3000, 50]));
        let security = ContainerSecurity { username: Some("web".into()), ..ContainerSecurity::default() };
        assert_eq!(find(&security, "root").unwrap(), identity(1000, 1001, &[1001, 50]));
    }

    #[test]
    fn the_images_groups_are_merged_unless_the_policy_is_strict() {
        let mut security = ContainerSecurity {
            user: Some(1000),
            supplemental_groups: vec![2000, 50, 2000],
            ..ContainerSecurity::default()
        };
        assert_eq!(find(&security, "").unwrap(), identity(1000, 1001, &[1001, 50, 2000]));
        security.supplemental_groups_policy = SupplementalGroupsPolicy::Strict;
        assert_eq!(find(&security, "").unwrap(), identity(1000, 1001, &[1001, 2000, 50]));
    }

    #[test]
    fn an_unknown_user_or_group_is_rejected_with_its_name() {
        let none = ContainerSecurity::default();
        let unknown = "unable to find user nobody: no matching entries in passwd file";
        assert_eq!(find(&none, "nobody"), Err(unknown.into()));
        let unknown = "unable to find group nobody: no matching entries in group file";
        assert_eq!(find(&none, "web:nobody"), Err(unknown.into()));
        let alone = ContainerSecurity { group: Some(5), ..ContainerSecurity::default() };
        assert_eq!(find(&alone, ""), Err("user group is specified without user".into()));
        let huge = ContainerSecurity { user: Some(1 << 40), ..ContainerSecurity::default() };
        assert!(find(&huge, "").unwrap_err().contains("is not between"));
    }

    #[test]
    fn links_in_the_image_do_not_lead_to_the_hosts_users() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("etc")).unwrap();
        // The target is missing in the image but exists on the host.
        std::os::unix::fs::symlink("/etc/group", folder.path().join("etc/passwd")).unwrap();
        std::os::unix::fs::symlink("../../../../../../proc/version", folder.path().join("etc/group"))
            .unwrap();
        let found = ProcessIdentity::find(folder.path(), &ContainerSecurity::default(), "").unwrap();
        assert_eq!(found, ProcessIdentity { uid: 0, gid: 0, groups: vec![0] });
        let error = ProcessIdentity::find(folder.path(), &ContainerSecurity::default(), "root").unwrap_err();
        assert!(error.message().starts_with("unable to find user root"), "{error}");
    }

    proptest! {
        #[test]
        fn malformed_files_never_cause_a_panic(passwd in ".{0,200}", group in ".{0,200}", user in "[a-z0-9:]{0,8}") {
            let security = ContainerSecurity { supplemental_groups: vec![1, 2], ..ContainerSecurity::default() };
            if let Ok(found) = ProcessIdentity::from_files(&passwd, &group, &security, &user) {
                prop_assert_eq!(found.groups.first(), Some(&found.gid));
            }
        }
    }
}
