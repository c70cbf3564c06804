use std::{
    fs::{create_dir, create_dir_all, read_to_string, write},
    os::unix::fs::{PermissionsExt, symlink},
    sync::atomic::{AtomicBool, Ordering},
};

use proptest::prelude::*;
use rustix::fs::RenameFlags;

use super::*;

/// Runs a test with a root and unreachable files beside it, once with `openat2` and once without.
fn each(test: impl Fn(&RootDir)) {
    for beneath in [BeneathMode::Openat2, BeneathMode::Walk] {
        let place = tempfile::tempdir().expect("a directory");
        write(place.path().join("secret"), "stolen").expect("a file");
        create_dir(place.path().join("outside")).expect("a directory");
        write(place.path().join("outside/file"), "stolen").expect("a file");
        create_dir(place.path().join("root")).expect("a directory");
        let mut root = RootDir::open(place.path().join("root")).expect("a root");
        assert_eq!(root.beneath, BeneathMode::Openat2, "this kernel has openat2");
        root.beneath = beneath;
        test(&root);
        let outside: Vec<_> = std::fs::read_dir(place.path().join("outside")).expect("a directory").collect();
        assert_eq!(outside.len(), 1, "{beneath:?} created something outside");
    }
}

/// Stops the other thread, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn read(root: &RootDir, path: &str) -> Result<String> {
    root.read(path, 1024).map(|content| String::from_utf8(content).expect("text"))
}

#[test]
fn files_are_read_through_links_that_stay_inside() {
    each(|root| {
        create_dir_all(root.path().join("a/b")).expect("directories");
        write(root.path().join("a/b/file"), "content").expect("a file");
        symlink("a/b", root.path().join("short")).expect("a link");
        symlink("../../a/./b/file", root.path().join("a/b/round")).expect("a link");
        for path in ["a/b/file", "./a//b/./file", "short/file", "short/round", "a/b/round"] {
            assert_eq!(read(root, path).expect(path), "content", "{path}");
        }
    });
}

#[test]
fn paths_that_lead_out_are_rejected() {
    each(|root| {
        symlink("../secret", root.path().join("up")).expect("a link");
        symlink("..", root.path().join("parent")).expect("a link");
        symlink("/etc/passwd", root.path().join("absolute")).expect("a link");
        symlink(root.path().join("here"), root.path().join("absolute-inside")).expect("a link");
        symlink("up", root.path().join("twice")).expect("a link");
        create_dir(root.path().join("a")).expect("a directory");
        symlink("../../secret", root.path().join("a/deep")).expect("a link");
        let links = [
            "up",
            "parent/secret",
            "absolute",
            "absolute-inside",
            "twice",
            "a/deep",
            "parent/root/a",
            "parent",
        ];
        for path in links {
            let error = root.handle(path).expect_err(path);
            assert!(matches!(error, Error::Outside { .. }), "{path}: {error:?}");
            assert!(error.to_string().contains("is outside of allowed base"), "{error}");
        }
        for path in ["../secret", "a/../../secret", "/etc/passwd", "..", "/", "a/..", "a\0b"] {
            let error = read(root, path).expect_err(path);
            assert!(matches!(error, Error::InvalidPath { .. }), "{path}: {error:?}");
        }
    });
}

#[test]
fn a_circle_of_links_ends() {
    each(|root| {
        symlink("b", root.path().join("a")).expect("a link");
        symlink("a", root.path().join("b")).expect("a link");
        let error = read(root, "a").expect_err("a loop");
        assert!(matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(40)), "{error:?}");
    });
}

#[test]
fn only_regular_files_up_to_the_limit_are_read_without_blocking() {
    each(|root| {
        write(root.path().join("file"), "12345").expect("a file");
        assert_eq!(root.read("file", 5).expect("a file"), b"12345");
        let error = root.read("file", 4).expect_err("too large");
        assert!(matches!(error, Error::TooLarge { limit: 4, .. }), "{error:?}");
        create_dir(root.path().join("directory")).expect("a directory");
        let pipe = fs::openat(&root.directory, ".", OFlags::DIRECTORY, Mode::empty()).expect("a handle");
        fs::mknodat(&pipe, "pipe", FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        for path in ["directory", "pipe", ""] {
            let error = root.read(path, 5).expect_err(path);
            assert!(matches!(error, Error::WrongType { .. }), "{path}: {error:?}");
        }
        assert!(root.read("none", 5).expect_err("nothing").is_not_found());
        assert!(root.read("file/below", 5).is_err());
    });
}

#[test]
fn new_directories_get_exactly_the_mode_and_existing_ones_are_unchanged() {
    each(|root| {
        create_dir(root.path().join("there")).expect("a directory");
        std::fs::set_permissions(root.path().join("there"), PermissionsExt::from_mode(0o700))
            .expect("a mode");
        symlink("there", root.path().join("link")).expect("a link");
        let handle = root.create_dirs("link/a/b", 0o2777).expect("directories");
        write(root.path().join("there/a/b/file"), "content").expect("a file");
        let through = format!("/proc/self/fd/{}/file", std::os::fd::AsRawFd::as_raw_fd(&handle));
        assert_eq!(read_to_string(through).expect("the same directory"), "content");
        let mode = |path: &str| {
            std::fs::metadata(root.path().join(path)).expect("metadata").permissions().mode() & 0o7777
        };
        assert_eq!((mode("there"), mode("there/a"), mode("there/a/b")), (0o700, 0o2777, 0o2777));
        root.create_dirs("link/a/b", 0o755).expect("the same directory");
        assert_eq!(mode("there/a/b"), 0o2777);
        root.create_dirs("", 0o755).expect("the root");
        write(root.path().join("file"), "").expect("a file");
        assert!(root.create_dirs("file/below", 0o755).is_err());
    });
}

#[test]
fn no_directory_is_created_outside() {
    each(|root| {
        symlink("../outside", root.path().join("out")).expect("a link");
        symlink("../outside/new", root.path().join("dangling")).expect("a link");
        for path in ["out/new", "out/new/deeper", "dangling", "dangling/deeper"] {
            let error = root.create_dirs(path, 0o755).expect_err(path);
            assert!(matches!(error, Error::Outside { .. } | Error::Io { .. }), "{path}: {error:?}");
        }
    });
}

/// A container that swaps a directory with a link to the outside and back, as fast as it can.
#[test]
fn no_lookup_leads_out_during_swaps_of_a_directory_and_a_link() {
    each(|root| {
        create_dir(root.path().join("swapped")).expect("a directory");
        write(root.path().join("swapped/file"), "inside").expect("a file");
        symlink("../outside", root.path().join("link")).expect("a link");
        let stop = AtomicBool::new(false);
        let (mut inside, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            let swapper = scope.spawn(|| {
                let directory = File::open(root.path()).expect("the root");
                while !stop.load(Ordering::Relaxed) {
                    fs::renameat_with(&directory, "swapped", &directory, "link", RenameFlags::EXCHANGE)
                        .expect("swapped");
                }
            });
            let _stop = Stop(&stop);
            for round in 0.. {
                match read(root, "swapped/file") {
                    Ok(content) if content == "inside" => inside += 1,
                    Ok(content) => panic!("{content}"),
                    Err(Error::Outside { .. }) => refused += 1,
                    Err(_) => {}
                }
                // `each` checks at the end where the new directory is.
                let _ = root.create_dirs(&format!("swapped/new-{}/deep", round % 50), 0o755);
                assert!(
                    round < 200_000,
                    "{inside} times inside, {refused} times rejected: the race did not happen"
                );
                if swapper.is_finished() || (round > 300 && inside > 20 && refused > 20) {
                    break;
                }
            }
        });
    });
}

#[test]
fn a_root_that_is_a_link_is_rejected() {
    let place = tempfile::tempdir().expect("a directory");
    symlink("/", place.path().join("link")).expect("a link");
    assert!(RootDir::open(place.path().join("link")).is_err());
    assert!(RootDir::open(place.path().join("none")).expect_err("nothing").is_not_found());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Links of every kind and every path through them: whatever is read was written inside.
    #[test]
    fn no_path_leads_out(
        links in prop::collection::vec(("[ab]{1,2}", "(/|\\.\\./|\\./|[ab]{1,2}/){0,4}(secret|[ab]{1,2}|\\.\\.)"), 0..6),
        paths in prop::collection::vec("(\\.\\./|\\./|/|[ab]{1,2}/){0,4}(secret|[ab]{1,2})", 1..12),
    ) {
        each(|root| {
            create_dir(root.path().join("a")).expect("a directory");
            write(root.path().join("a/b"), "inside").expect("a file");
            for (name, target) in &links {
                // Existing names are kept.
                let _ = symlink(target, root.path().join(name));
                let _ = symlink(target, root.path().join("a").join(name));
            }
            for path in &paths {
                if let Ok(content) = read(root, path) {
                    assert_eq!(content, "inside", "{path}");
                }
                let _ = root.create_dirs(path, 0o755);
            }
        });
    }
}
