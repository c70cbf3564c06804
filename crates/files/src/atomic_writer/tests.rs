use std::{
    collections::BTreeMap,
    fs::{create_dir, read_dir, read_link, write as write_file},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bytes::Bytes;
use proptest::prelude::*;
use vk_provider::resolve::Origin;

use super::*;

fn now() -> Timestamp {
    "2026-11-15T16:30:00.000000007Z".parse().expect("a time")
}

fn file(content: &str) -> File {
    File::new(Bytes::copy_from_slice(content.as_bytes()), 0o644, Origin::ConfigMap)
}

fn set(files: &[(&str, &str)]) -> FileSet {
    let files = files.iter().map(|(path, content)| ((*path).to_owned(), file(content))).collect();
    FileSet { files, expires: None }
}

/// Stops the other thread, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Volume {
    place: tempfile::TempDir,
}

impl Volume {
    fn new() -> Self {
        Self { place: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn writer(&self) -> AtomicWriter {
        AtomicWriter::open(self.path()).expect("a writer")
    }

    /// The names in the volume, with the targets of links.
    fn listing(&self) -> BTreeMap<String, Option<String>> {
        let entries = read_dir(self.path()).expect("a directory").map(|entry| entry.expect("an entry"));
        entries
            .map(|entry| {
                let target = read_link(entry.path()).ok().map(|target| target.to_string_lossy().into_owned());
                (entry.file_name().to_string_lossy().into_owned(), target)
            })
            .collect()
    }

    /// What a reader finds through `..data`; `None` without a set.
    fn shown(&self) -> Option<BTreeMap<String, String>> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = fs::open(self.path().join(DATA), flags, Mode::empty()).ok()?;
        let files = payload::read(&directory, self.path()).expect("files");
        let text = |content: Vec<u8>| String::from_utf8(content).expect("text");
        Some(files.into_iter().map(|(path, found)| (path, text(found.content))).collect())
    }

    /// Asserts that the volume holds exactly this set and nothing else.
    #[track_caller]
    fn is(&self, set: &FileSet) {
        let shown = self.shown().expect("a set");
        let wanted: BTreeMap<String, String> = set
            .files
            .iter()
            .map(|(path, file)| (path.clone(), String::from_utf8(file.content.to_vec()).expect("text")))
            .collect();
        assert_eq!(shown, wanted);
        let listing = self.listing();
        let data = listing[DATA].clone().expect("a link");
        assert!(is_payload_dir(&data), "{data}");
        let mut names = BTreeMap::from([(DATA.to_owned(), Some(data.clone())), (data, None)]);
        for top in validate(set).expect("paths") {
            names.insert(top.to_owned(), Some(format!("{DATA}/{top}")));
        }
        assert_eq!(listing, names);
        for (path, content) in wanted {
            assert_eq!(std::fs::read_to_string(self.path().join(&path)).expect(&path), content);
        }
    }
}

#[test]
fn a_set_is_written_in_the_kubelets_layout() {
    let volume = Volume::new();
    let files = set(&[("a", "1"), ("sub/b", "2"), ("sub/deep/c", "3"), (".hidden", "4")]);
    assert!(volume.writer().write(&files, now()).expect("written"));
    volume.is(&files);
    let link = |target: &str| Some(target.to_owned());
    let wanted = BTreeMap::from([
        ("..2026_11_15_16_30_00.000000007".to_owned(), None),
        ("..data".to_owned(), link("..2026_11_15_16_30_00.000000007")),
        (".hidden".to_owned(), link("..data/.hidden")),
        ("a".to_owned(), link("..data/a")),
        ("sub".to_owned(), link("..data/sub")),
    ]);
    assert_eq!(volume.listing(), wanted);
}

#[test]
fn an_identical_set_is_not_written_again() {
    let volume = Volume::new();
    let files = set(&[("a", "1"), ("sub/b", "2")]);
    assert!(volume.writer().write(&files, now()).expect("written"));
    let before = volume.listing();
    assert!(!volume.writer().write(&files, now()).expect("unchanged"));
    assert_eq!(volume.listing(), before);
    // A removed link is created again without a new payload directory.
    std::fs::remove_file(volume.path().join("a")).expect("removed");
    assert!(!volume.writer().write(&files, now()).expect("unchanged"));
    assert_eq!(volume.listing(), before);
}

#[test]
fn any_change_is_written() {
    let base = set(&[("a", "1"), ("sub/b", "2")]);
    let mut mode = base.clone();
    mode.files.get_mut("a").expect("a file").mode = 0o600;
    let others = [
        set(&[("a", "1")]),
        set(&[("a", "1"), ("sub/b", "2"), ("sub/c", "")]),
        set(&[("a", "1"), ("sub/b", "3")]),
        set(&[("sub", "1"), ("a/b", "2")]),
        set(&[]),
        mode,
    ];
    for other in &others {
        let volume = Volume::new();
        let mut writer = volume.writer();
        for files in [&base, other, &base] {
            assert!(writer.write(files, now()).expect("written"), "{files:?}");
            volume.is(files);
            assert!(!writer.write(files, now()).expect("unchanged"), "{files:?}");
        }
    }
}

#[test]
fn readers_with_the_old_set_open_keep_it() {
    let volume = Volume::new();
    let mut writer = volume.writer();
    writer.write(&set(&[("a", "old")]), now()).expect("written");
    let open = std::fs::File::open(volume.path().join("a")).expect("a file");
    writer.write(&set(&[("a", "new")]), now()).expect("written");
    assert_eq!(std::io::read_to_string(open).expect("text"), "old");
    assert_eq!(std::fs::read_to_string(volume.path().join("a")).expect("text"), "new");
}

#[test]
fn a_name_is_not_used_twice_if_the_clock_does_not_advance() {
    let volume = Volume::new();
    let mut writer = volume.writer();
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        writer.write(&set(&[("a", ["x", "y"][round % 2])]), now()).expect("written");
        assert!(seen.insert(volume.listing()[DATA].clone()), "round {round}");
    }
}

#[test]
fn modes_are_exact() {
    let volume = Volume::new();
    let mut files = FileSet::default();
    for mode in [0o400, 0o444, 0o600, 0o640, 0o644, 0o666, 0o777, 0o7755] {
        files.files.insert(format!("sub/{mode:o}"), File { mode, ..file("x") });
    }
    volume.writer().write(&files, now()).expect("written");
    let mode = |path: &str| {
        std::fs::metadata(volume.path().join(path)).expect("metadata").permissions().mode() & 0o7777
    };
    for (path, file) in &files.files {
        assert_eq!(mode(path), file.mode & 0o777, "{path}");
    }
    assert_eq!((mode("sub"), mode(DATA)), (0o755, 0o755));
    assert!(!volume.writer().write(&files, now()).expect("unchanged"));
}

/// Changing the owner needs a privilege; setting one's own does not.
#[test]
fn owner_and_group_are_set_and_the_group_may_read() {
    let volume = Volume::new();
    let own = std::fs::metadata(volume.path()).expect("metadata");
    let root = own.uid() == 0;
    let (owner, group) = if root { (1234, 5678) } else { (own.uid(), own.gid()) };
    let mut files = set(&[("plain", ""), ("sub/plain", "")]);
    files.files.insert("token".to_owned(), File { mode: 0o600, owner: Some(owner), ..file("t") });
    let mut writer = volume.writer().group(Some(group));
    assert!(writer.write(&files, now()).expect("written"));
    assert!(!writer.write(&files, now()).expect("unchanged"));
    let facts = |path: &str| {
        let metadata = std::fs::metadata(volume.path().join(path)).expect("metadata");
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(facts("token"), (owner, group, 0o640));
    assert_eq!(facts("plain"), (own.uid(), group, 0o644));
    assert_eq!(facts("sub"), (own.uid(), group, 0o2755));
    assert_eq!(facts(""), (own.uid(), group, (own.mode() & 0o7777) | 0o2550));
    // Without the group it is a different set.
    assert!(volume.writer().write(&files, now()).expect("written"));
}

#[test]
fn what_is_not_ours_stays() {
    let volume = Volume::new();
    create_dir(volume.path().join("mount-point")).expect("a directory");
    create_dir(volume.path().join("..2026_not_ours")).expect("a directory");
    write_file(volume.path().join("there"), "mine").expect("a file");
    symlink("elsewhere", volume.path().join("link")).expect("a link");
    let mut writer = volume.writer();
    writer.write(&set(&[("mount-point", "x"), ("there", "x"), ("a", "")]), now()).expect("written");
    writer.write(&set(&[("b", "")]), now()).expect("written");
    let names: Vec<String> = volume.listing().into_keys().filter(|name| !is_payload_dir(name)).collect();
    assert_eq!(names, ["..2026_not_ours", "..data", "b", "link", "mount-point", "there"]);
    assert_eq!(std::fs::read_to_string(volume.path().join("there")).expect("text"), "mine");
}

#[test]
fn nothing_is_removed_through_a_link() {
    let (volume, other) = (Volume::new(), Volume::new());
    write_file(other.path().join("precious"), "x").expect("a file");
    symlink(other.path(), volume.path().join("..2020_01_01_00_00_00.1")).expect("a link");
    create_dir(volume.path().join("..2020_01_01_00_00_00.2")).expect("a directory");
    symlink(other.path(), volume.path().join("..2020_01_01_00_00_00.2/inside")).expect("a link");
    symlink(other.path(), volume.path().join(DATA)).expect("a link");
    let files = set(&[("a", "1")]);
    volume.writer().write(&files, now()).expect("written");
    assert!(other.path().join("precious").exists());
    assert!(!volume.path().join("..2020_01_01_00_00_00.2").exists());
    assert_eq!(volume.shown().expect("a set")["a"], "1");
}

#[test]
fn paths_that_leave_the_volume_are_rejected_and_nothing_is_written() {
    for path in ["../a", "/a", "", ".", "..", "a/../../b", "..data", "..x/y", "a//b", "./a", "a/", "a\0"] {
        let volume = Volume::new();
        let error = volume.writer().write(&set(&[("fine", ""), (path, "")]), now()).expect_err(path);
        assert!(matches!(error, Error::InvalidPath { .. }), "{path}: {error:?}");
        assert_eq!(volume.listing(), BTreeMap::new(), "{path}");
    }
}

#[test]
fn a_failed_write_leaves_the_old_set_and_nothing_else() {
    let volume = Volume::new();
    let old = set(&[("a", "1")]);
    let mut writer = volume.writer();
    writer.write(&old, now()).expect("written");
    // A file where a directory is needed.
    let error = writer.write(&set(&[("b", ""), ("b/c", "")]), now()).expect_err("impossible");
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
    volume.is(&old);
    assert!(AtomicWriter::open(volume.path().join("none")).expect_err("nothing").is_not_found());
    assert!(AtomicWriter::open(volume.path().join(DATA)).is_err(), "a link is not a directory");
}

/// Crashes before the step with this number. Returns whether there was one.
fn dies_at(writer: &mut AtomicWriter, files: &FileSet, number: usize) -> bool {
    let mut steps = 0;
    let died = writer.write_with_steps(files, now(), &mut || {
        steps += 1;
        let alive = steps <= number;
        alive.then_some(()).ok_or_else(|| Error::InvalidPath { path: String::new(), why: "the end" })
    });
    died.is_err()
}

#[test]
fn a_crash_at_any_step_leaves_a_complete_set_and_the_next_write_cleans_up() {
    let sets = [
        set(&[("a", "1"), ("b", "1"), ("sub/c", "1"), ("gone/x", "1")]),
        set(&[("a", "2"), ("sub/c", "2"), ("sub/deep/d", "2"), ("e", "2"), ("b/now/a/directory", "2")]),
        set(&[("z", "3")]),
    ];
    let contents: Vec<_> = sets.iter().map(whole).collect();
    let mut points = 0;
    for (from, to, next) in [(0, 1, 2), (1, 0, 1), (0, 2, 0), (2, 1, 1), (0, 1, 0)] {
        for number in 0.. {
            let volume = Volume::new();
            volume.writer().write(&sets[from], now()).expect("written");
            if !dies_at(&mut volume.writer(), &sets[to], number) {
                assert!(number > 10, "only {number} steps");
                break;
            }
            points += 1;
            let shown = volume.shown().expect("a set");
            assert!(
                shown == contents[from] || shown == contents[to],
                "a part of a set after step {number}: {shown:?}"
            );
            // It may crash again and again while recovering.
            for again in 0..3 {
                dies_at(&mut volume.writer(), &sets[to], again);
            }
            volume.writer().write(&sets[next], now()).expect("written");
            volume.is(&sets[next]);
        }
    }
    assert!(points > 100, "only {points} points of failure");
}

#[test]
fn a_crash_in_the_first_write_leaves_nothing_or_everything() {
    let files = set(&[("a", "1"), ("sub/c", "1")]);
    for number in 0.. {
        let volume = Volume::new();
        if !dies_at(&mut volume.writer(), &files, number) {
            break;
        }
        assert!(volume.shown().is_none_or(|shown| shown == whole(&files)), "after step {number}");
        volume.writer().write(&files, now()).expect("written");
        volume.is(&files);
    }
}

fn whole(set: &FileSet) -> BTreeMap<String, String> {
    let text = |file: &File| String::from_utf8(file.content.to_vec()).expect("text");
    set.files.iter().map(|(path, file)| (path.clone(), text(file))).collect()
}

#[test]
fn readers_never_see_two_sets_mixed() {
    let volume = Volume::new();
    let sets = ["0", "1", "2"].map(|content| set(&[("a", content), ("b", content), ("sub/c", content)]));
    volume.writer().write(&sets[0], now()).expect("written");
    let (seen, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    // Reads the link once, and then only below it, as a program that wants a consistent set. The directory may be removed
    // meanwhile, and then it starts again.
    let read = || {
        let target = read_link(volume.path().join(DATA)).expect("there is always a set");
        let directory = volume.path().join(target);
        let content = ["a", "b", "sub/c"].map(|path| std::fs::read_to_string(directory.join(path)));
        if let Ok(content) = content.into_iter().collect::<std::io::Result<Vec<_>>>() {
            assert!(content.iter().all(|text| *text == content[0]), "{content:?}");
            seen.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                read();
            }
        });
        let _stop = Stop(&stop);
        let mut writer = volume.writer();
        for round in 0.. {
            assert!(writer.write(&sets[(round + 1) % 3], now()).expect("written"));
            assert!(round < 100_000, "the reader saw {seen:?} sets");
            if reader.is_finished() || (round > 200 && seen.load(Ordering::Relaxed) > 200) {
                break;
            }
        }
    });
}

fn paths() -> impl Strategy<Value = FileSet> {
    let path = "[abc.]{1,3}(/[ab.]{1,3}){0,2}";
    prop::collection::btree_map(path, "[xyz]{0,3}", 0..6).prop_map(|files| FileSet {
        files: files.into_iter().map(|(path, content)| (path, file(&content))).collect(),
        expires: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn after_any_sequence_of_sets_only_the_last_good_one_is_left(sets in prop::collection::vec(paths(), 1..5)) {
        let volume = Volume::new();
        let mut last = None;
        for files in &sets {
            if volume.writer().write(files, now()).is_ok() {
                last = Some(files);
            }
        }
        if let Some(files) = last {
            volume.is(files);
        } else {
            prop_assert_eq!(volume.listing(), BTreeMap::new());
        }
    }
}
