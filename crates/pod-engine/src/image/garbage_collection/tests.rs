use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn image(id: &str, size: u64) -> Image {
    Image { id: id.to_owned(), size, ..Image::default() }
}

fn ids(ids: &[&str]) -> ImagesInUse {
    ids.iter().collect()
}

fn plan(inventory: &ImageInventory, used: &[&str], available: u64, now: i64) -> Option<RemovalPlan> {
    let disk = DiskUsage { capacity: 1000, available };
    plan_removal(inventory, &ids(used), disk, &GcThresholds::default(), at(now))
}

fn names(plan_removal: &RemovalPlan) -> Vec<&str> {
    plan_removal.candidates.iter().map(|(id, _)| id.as_str()).collect()
}

#[test]
fn nothing_is_removed_below_the_high_mark() {
    let mut inventory = ImageInventory::default();
    inventory.update(&[image("a", 100)], &ids(&[]), at(0));
    assert_eq!(plan(&inventory, &[], 160, 600), None);
    let found = plan(&inventory, &[], 159, 600).unwrap();
    assert_eq!((found.percent, found.bytes), (85, 41));
    assert_eq!(found.candidates, [("a".to_owned(), 100)]);
    let full = plan(&inventory, &[], 0, 600).unwrap();
    assert_eq!((full.percent, full.bytes), (100, 200));
}

#[test]
fn what_was_unused_longest_goes_first() {
    let all = [image("new", 1), image("old", 1), image("used", 1), image("lately", 1)];
    let mut inventory = ImageInventory::default();
    inventory.update(&all[1..2], &ids(&[]), at(0));
    inventory.update(&all[1..], &ids(&["used"]), at(100));
    inventory.update(&all[1..], &ids(&["lately"]), at(200));
    inventory.update(&all, &ids(&[]), at(300));
    let found = plan(&inventory, &[], 100, 1000).unwrap();
    assert_eq!(names(&found), ["old", "new", "used", "lately"]);
}

#[test]
fn images_in_use_pinned_ones_and_new_ones_stay() {
    let pinned = Image { pinned: true, ..image("pinned", 1) };
    let mut inventory = ImageInventory::default();
    inventory.update(&[image("used", 1), pinned, image("old", 1)], &ids(&["used"]), at(0));
    inventory.update(
        &[image("used", 1), image("pinned", 1), image("old", 1), image("new", 1)],
        &ids(&["used"]),
        at(500),
    );
    let found = plan(&inventory, &["used"], 100, 619).unwrap();
    assert_eq!(names(&found), ["old", "pinned"], "no more pinned, and not two minutes old");
    inventory.update(
        &[image("used", 1), Image { pinned: true, ..image("pinned", 1) }, image("new", 1)],
        &ids(&["used"]),
        at(620),
    );
    assert_eq!(names(&plan(&inventory, &["used"], 100, 620).unwrap()), ["new"]);
}

#[test]
fn an_image_is_in_use_by_whichever_name_the_runtime_tells() {
    let hex = |digit: &str| digit.repeat(64);
    let (id, digest) = (format!("sha256:{}", hex("a")), format!("sha256:{}", hex("b")));
    let known = Image {
        tags: vec![
            "docker.io/library/busybox:1.37".to_owned(),
            "registry.example:5000/tools/box:v1".to_owned(),
        ],
        digests: vec![format!("docker.io/library/busybox@{digest}")],
        ..image(&id, 1)
    };
    let mut inventory = ImageInventory::default();
    inventory.update(&[known], &ids(&[]), at(0));
    let free = |name: &str| !names(&plan(&inventory, &[name], 100, 600).unwrap()).is_empty();
    let (bare, full) = (hex("a"), format!("docker.io/library/busybox@{digest}"));
    let tagged = format!("busybox:1.37@{digest}");
    let same = [
        &*id,
        &*bare,
        &*digest,
        &*full,
        &*tagged,
        "busybox:1.37",
        "library/busybox:1.37",
        "docker.io/busybox:1.37",
        "index.docker.io/library/busybox:1.37",
        "registry.example:5000/tools/box:v1",
    ];
    for name in same {
        assert!(!free(name), "{name} is this image");
    }
    let other = format!("sha256:{}", hex("c"));
    for name in ["", "busybox", "busybox:1.36", "tools/box:v1", "registry.example:5000/tools/box", &other] {
        assert!(free(name), "{name} is another image");
    }
}

#[test]
fn an_image_that_came_back_is_new() {
    let mut inventory = ImageInventory::default();
    inventory.update(&[image("a", 1)], &ids(&[]), at(0));
    inventory.update(&[], &ids(&[]), at(100));
    inventory.update(&[image("a", 1)], &ids(&[]), at(200));
    assert!(plan(&inventory, &[], 100, 210).unwrap().candidates.is_empty());
}

#[test]
fn a_disk_without_size_is_left_alone() {
    let disk = DiskUsage { capacity: 0, available: 0 };
    assert_eq!(
        plan_removal(&ImageInventory::default(), &ids(&[]), disk, &GcThresholds::default(), at(0)),
        None
    );
    let odd = DiskUsage { capacity: 10, available: 20 };
    assert_eq!(
        plan_removal(&ImageInventory::default(), &ids(&[]), odd, &GcThresholds::default(), at(0)),
        None
    );
}

#[test]
fn a_shortfall_is_told_as_by_a_kubelet() {
    let disk = DiskUsage { capacity: 53_687_091_200, available: 0 };
    let expected = "Insufficient free disk space on the node's image filesystem (92% of 50.0 GiB used). Failed to free sufficient \
        space by deleting unused images (freed 17 bytes). Investigate disk usage, as it could be used by active images, logs, \
        volumes, or other data.";
    assert_eq!(shortfall_message(disk, 92, 17), expected);
    for (bytes, text) in [(512, "512 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (3 << 39, "1.5 TiB")] {
        assert_eq!(size(bytes), text);
    }
}
