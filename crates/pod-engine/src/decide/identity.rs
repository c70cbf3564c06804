//! What is remembered of a container beyond its life: what its spec was, and how often it was started.

use k8s_openapi::api::core::v1::Container;

/// What of a container's spec makes a restart necessary when it changes, as a number: its name and its image.
///
/// It is the number that a kubelet computes, so that a node can change hands without restarts.
pub fn hash(container: &Container) -> u64 {
    // JSON with sorted keys, as bytes in the notation that Go's spew has for a byte slice, into FNV-1a of 32 bits.
    let picked = serde_json::json!({ "image": container.image.as_deref().unwrap_or_default(), "name": container.name });
    let bytes: Vec<String> = picked.to_string().bytes().map(|byte| byte.to_string()).collect();
    let shown = format!("([]uint8)[{}]", bytes.join(" "));
    u64::from(
        shown.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)),
    )
}

/// The restart count of a container that the runtime does not know, from the names of the files in its log directory: one more than
/// the highest of `<count>.log`, rotated ones included.
pub fn restarts_by_logs<'a>(file_names: impl IntoIterator<Item = &'a str>) -> u32 {
    let counts = file_names.into_iter().filter_map(|name| {
        let (count, rest) = name.split_at(name.find(|char: char| !char.is_ascii_digit())?);
        rest.starts_with(".log").then(|| count.parse::<u32>().ok()).flatten()
    });
    counts.max().map_or(0, |highest| highest.saturating_add(1))
}
