//! The syntax of names, labels and taints, as the API server checks it (apimachinery, `util/validation`).

/// The longest DNS-1123 subdomain.
const SUBDOMAIN_MAX: usize = 253;
/// The longest name part of a key, and the longest value of a label.
const NAME_MAX: usize = 63;

/// Checks a DNS-1123 subdomain: what names of nodes and prefixes of keys must be.
pub(crate) fn check_subdomain(text: &str) -> Result<(), String> {
    let part = |part: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    if text.len() > SUBDOMAIN_MAX {
        Err(format!("is {} characters long: {SUBDOMAIN_MAX} are allowed", text.len()))
    } else if text.split('.').all(part) {
        Ok(())
    } else {
        Err("is not a DNS-1123 subdomain: write lowercase letters, digits, `-` and `.`, with a letter or digit at both ends"
            .into())
    }
}

/// Checks a key of a label, annotation or taint: `name` or `prefix/name`.
pub(super) fn check_key(key: &str) -> Result<(), String> {
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            check_subdomain(prefix).map_err(|wrong| format!("prefix `{prefix}` {wrong}"))?;
            name
        }
        None => key,
    };
    if is_qualified(name) {
        Ok(())
    } else {
        Err(format!(
            "`{key}` is not a key: write `name` or `prefix/name`, the name of at most {NAME_MAX} letters, digits, `-`, `_` and `.` \
             with a letter or digit at both ends"
        ))
    }
}

/// Checks the value of a label or taint, which may be empty.
pub(super) fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_qualified(value) {
        Ok(())
    } else {
        Err(format!(
            "`{value}` is not a value: write at most {NAME_MAX} letters, digits, `-`, `_` and `.` with a letter or digit at both \
             ends, or nothing"
        ))
    }
}

fn is_qualified(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let at_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= NAME_MAX
        && name.chars().all(inside)
        && at_end(name.chars().next())
        && at_end(name.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subdomains() {
        for good in ["a", "vk-0", "vk.example.com", "0", &"a".repeat(253)] {
            assert_eq!(check_subdomain(good), Ok(()), "{good}");
        }
        for bad in ["", "Vk", "vk_0", "-a", "a-", "a..b", ".a", "a.", "ä", &"a".repeat(254)] {
            assert!(check_subdomain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_and_values() {
        for good in ["a", "A.b_c-d", "example.com/x", &"a".repeat(63)] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        for bad in ["", "/x", "a/", "a/b/c", "Ex.com/x", "-a", "a b", &"a".repeat(64)] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
        for good in ["", "a", "1.5_x-Y"] {
            assert_eq!(check_value(good), Ok(()), "{good}");
        }
        for bad in ["a b", "-a", "a/b", &"a".repeat(64)] {
            assert!(check_value(bad).is_err(), "{bad}");
        }
    }
}
