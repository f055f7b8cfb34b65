/* A balanced tree inside the objects it holds: nothing to allocate, so inserting cannot fail.
 *
 * SIM_TREE(name, type, key, left, right) makes, for a `type` with those three members:
 *   name_floor(root, k)     the object with the greatest key <= k, or NULL
 *   name_ceiling(root, k)   the object with the least key >= k, or NULL
 *   name_insert(&root, object), name_remove(&root, object)
 *
 * It is a treap whose priorities are a mix of the keys: any order of insertion gives a tree of logarithmic depth. Keys are
 * distinct. */
#ifndef GVMM_SIM_TREE_H
#define GVMM_SIM_TREE_H

#include <stddef.h>
#include <stdint.h>

/* A bijection, so that distinct keys have distinct priorities. */
static inline uint64_t sim_tree_priority(uint64_t key)
{
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93u;
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93u;
    key ^= key >> 32;
    return key;
}

#define SIM_TREE(name, type, key, left, right) \
    __attribute__((unused)) static inline type *name##_floor(type *node, uint64_t k) \
    { \
        type *best = NULL; \
        while (node) { \
            if (node->key <= k) { \
                best = node; \
                node = node->right; \
            } else { \
                node = node->left; \
            } \
        } \
        return best; \
    } \
    __attribute__((unused)) static inline type *name##_ceiling(type *node, uint64_t k) \
    { \
        type *best = NULL; \
        while (node) { \
            if (node->key >= k) { \
                best = node; \
                node = node->left; \
            } else { \
                node = node->right; \
            } \
        } \
        return best; \
    } \
    /* Goes down to where the priority is due, and splits what is below by the key. */ \
    __attribute__((unused)) static inline void name##_insert(type **link, type *object) \
    { \
        uint64_t k = object->key, mine = sim_tree_priority(k); \
        while (*link && sim_tree_priority((*link)->key) > mine) \
            link = (*link)->key < k ? &(*link)->right : &(*link)->left; \
        type *below = *link, **low = &object->left, **high = &object->right; \
        *link = object; \
        while (below) { \
            if (below->key < k) { \
                *low = below; \
                low = &below->right; \
                below = *low; \
            } else { \
                *high = below; \
                high = &below->left; \
                below = *high; \
            } \
        } \
        *low = NULL; \
        *high = NULL; \
    } \
    /* Puts the two subtrees, merged by priority, in the object's place. */ \
    __attribute__((unused)) static inline void name##_remove(type **link, type *object) \
    { \
        while (*link != object) link = (*link)->key < object->key ? &(*link)->right : &(*link)->left; \
        type *low = object->left, *high = object->right; \
        while (low && high) { \
            if (sim_tree_priority(low->key) > sim_tree_priority(high->key)) { \
                *link = low; \
                link = &low->right; \
                low = *link; \
            } else { \
                *link = high; \
                link = &high->left; \
                high = *link; \
            } \
        } \
        *link = low ? low : high; \
        object->left = NULL; \
        object->right = NULL; \
    }

#endif
