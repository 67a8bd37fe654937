;; The two loops that take the time: Philox4x64-10, and products of matrices.
;; kernels.wasm is made of this file by assemble.py.
(module
  (memory (export "memory") 1)

  ;; The high 64 bits of a product of two 64-bit numbers.
  (func $high (param $a i64) (param $b i64) (result i64)
    (local $al i64) (local $ah i64) (local $bl i64) (local $bh i64)
    (local $p i64) (local $q i64)
    (local.set $al (i64.and (local.get $a) (i64.const 0xffffffff)))
    (local.set $ah (i64.shr_u (local.get $a) (i64.const 32)))
    (local.set $bl (i64.and (local.get $b) (i64.const 0xffffffff)))
    (local.set $bh (i64.shr_u (local.get $b) (i64.const 32)))
    (local.set $p
      (i64.add
        (i64.mul (local.get $ah) (local.get $bl))
        (i64.shr_u (i64.mul (local.get $al) (local.get $bl)) (i64.const 32))))
    (local.set $q
      (i64.add
        (i64.mul (local.get $al) (local.get $bh))
        (i64.and (local.get $p) (i64.const 0xffffffff))))
    (i64.add
      (i64.mul (local.get $ah) (local.get $bh))
      (i64.add
        (i64.shr_u (local.get $p) (i64.const 32))
        (i64.shr_u (local.get $q) (i64.const 32)))))

  ;; Write the four words of each of `blocks` counters, from `counter` on, to `out`.
  (func (export "philox")
    (param $out i32) (param $blocks i32) (param $counter i64)
    (param $key0 i64) (param $key1 i64)
    (local $c0 i64) (local $c1 i64) (local $c2 i64) (local $c3 i64)
    (local $k0 i64) (local $k1 i64) (local $t i64) (local $round i32)
    (block $done
      (loop $block
        (br_if $done (i32.eqz (local.get $blocks)))
        (local.set $c0 (local.get $counter))
        (local.set $c1 (i64.const 0))
        (local.set $c2 (i64.const 0))
        (local.set $c3 (i64.const 0))
        (local.set $k0 (local.get $key0))
        (local.set $k1 (local.get $key1))
        (local.set $round (i32.const 10))
        (loop $rounds
          (local.set $t
            (i64.xor
              (i64.xor
                (call $high (local.get $c2) (i64.const 0xca5a826395121157))
                (local.get $c1))
              (local.get $k0)))
          (local.set $c1 (i64.mul (local.get $c2) (i64.const 0xca5a826395121157)))
          (local.set $c2
            (i64.xor
              (i64.xor
                (call $high (local.get $c0) (i64.const 0xd2e7470ee14c6c93))
                (local.get $c3))
              (local.get $k1)))
          (local.set $c3 (i64.mul (local.get $c0) (i64.const 0xd2e7470ee14c6c93)))
          (local.set $c0 (local.get $t))
          (local.set $k0 (i64.add (local.get $k0) (i64.const 0x9e3779b97f4a7c15)))
          (local.set $k1 (i64.add (local.get $k1) (i64.const 0xbb67ae8584caa73b)))
          (local.set $round (i32.sub (local.get $round) (i32.const 1)))
          (br_if $rounds (local.get $round)))
        (i64.store (local.get $out) (local.get $c0))
        (i64.store offset=8 (local.get $out) (local.get $c1))
        (i64.store offset=16 (local.get $out) (local.get $c2))
        (i64.store offset=24 (local.get $out) (local.get $c3))
        (local.set $out (i32.add (local.get $out) (i32.const 32)))
        (local.set $counter (i64.add (local.get $counter) (i64.const 1)))
        (local.set $blocks (i32.sub (local.get $blocks) (i32.const 1)))
        (br $block))))

  (func $sum (param $v v128) (result f32)
    (f32.add
      (f32.add
        (f32x4.extract_lane 0 (local.get $v)) (f32x4.extract_lane 1 (local.get $v)))
      (f32.add
        (f32x4.extract_lane 2 (local.get $v)) (f32x4.extract_lane 3 (local.get $v)))))

  ;; The product of `k` floats at `p` and at `q`.
  (func $dot (param $p i32) (param $q i32) (param $k i32) (result f32)
    (local $a v128) (local $s f32) (local $end i32)
    (local.set $end
      (i32.add (local.get $p) (i32.shl (i32.and (local.get $k) (i32.const -4)) (i32.const 2))))
    (block $vectors
      (loop $four
        (br_if $vectors (i32.ge_u (local.get $p) (local.get $end)))
        (local.set $a
          (f32x4.add (local.get $a)
            (f32x4.mul (v128.load (local.get $p)) (v128.load (local.get $q)))))
        (local.set $p (i32.add (local.get $p) (i32.const 16)))
        (local.set $q (i32.add (local.get $q) (i32.const 16)))
        (br $four)))
    (local.set $s (call $sum (local.get $a)))
    (local.set $end
      (i32.add (local.get $p) (i32.shl (i32.and (local.get $k) (i32.const 3)) (i32.const 2))))
    (block $rest
      (loop $one
        (br_if $rest (i32.ge_u (local.get $p) (local.get $end)))
        (local.set $s
          (f32.add (local.get $s)
            (f32.mul (f32.load (local.get $p)) (f32.load (local.get $q)))))
        (local.set $p (i32.add (local.get $p) (i32.const 4)))
        (local.set $q (i32.add (local.get $q) (i32.const 4)))
        (br $one)))
    (local.get $s))

  ;; y = x w^T: x has n rows of k floats, w has m rows of k, y has n rows of m.
  ;; Addresses are in bytes. Four rows of w at a time share the loads of x.
  (func (export "product")
    (param $x i32) (param $w i32) (param $y i32)
    (param $n i32) (param $k i32) (param $m i32)
    (local $row i32) (local $j i32) (local $r i32) (local $p i32) (local $end i32)
    (local $q0 i32) (local $q1 i32) (local $q2 i32) (local $q3 i32) (local $out i32)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128) (local $v v128)
    (local $stride i32)
    (local.set $stride (i32.shl (local.get $k) (i32.const 2)))
    (block $columns
      (loop $column
        (br_if $columns (i32.ge_u (local.get $j) (local.get $m)))
        (local.set $r (i32.const 0))
        (if
          (i32.or
            (i32.and (local.get $k) (i32.const 3))
            (i32.gt_u (i32.add (local.get $j) (i32.const 4)) (local.get $m)))
          (then
            (loop $rows
              (f32.store
                (i32.add (local.get $y)
                  (i32.shl
                    (i32.add (i32.mul (local.get $r) (local.get $m)) (local.get $j))
                    (i32.const 2)))
                (call $dot
                  (i32.add (local.get $x) (i32.mul (local.get $r) (local.get $stride)))
                  (local.get $w) (local.get $k)))
              (local.set $r (i32.add (local.get $r) (i32.const 1)))
              (br_if $rows (i32.lt_u (local.get $r) (local.get $n))))
            (local.set $w (i32.add (local.get $w) (local.get $stride)))
            (local.set $j (i32.add (local.get $j) (i32.const 1))))
          (else
            (loop $rows
              (local.set $p
                (i32.add (local.get $x) (i32.mul (local.get $r) (local.get $stride))))
              (local.set $end (i32.add (local.get $p) (local.get $stride)))
              (local.set $q0 (local.get $w))
              (local.set $q1 (i32.add (local.get $q0) (local.get $stride)))
              (local.set $q2 (i32.add (local.get $q1) (local.get $stride)))
              (local.set $q3 (i32.add (local.get $q2) (local.get $stride)))
              (local.set $a0 (v128.const i32x4 0 0 0 0))
              (local.set $a1 (v128.const i32x4 0 0 0 0))
              (local.set $a2 (v128.const i32x4 0 0 0 0))
              (local.set $a3 (v128.const i32x4 0 0 0 0))
              (loop $four
                (local.set $v (v128.load (local.get $p)))
                (local.set $a0
                  (f32x4.add (local.get $a0) (f32x4.mul (local.get $v) (v128.load (local.get $q0)))))
                (local.set $a1
                  (f32x4.add (local.get $a1) (f32x4.mul (local.get $v) (v128.load (local.get $q1)))))
                (local.set $a2
                  (f32x4.add (local.get $a2) (f32x4.mul (local.get $v) (v128.load (local.get $q2)))))
                (local.set $a3
                  (f32x4.add (local.get $a3) (f32x4.mul (local.get $v) (v128.load (local.get $q3)))))
                (local.set $p (i32.add (local.get $p) (i32.const 16)))
                (local.set $q0 (i32.add (local.get $q0) (i32.const 16)))
                (local.set $q1 (i32.add (local.get $q1) (i32.const 16)))
                (local.set $q2 (i32.add (local.get $q2) (i32.const 16)))
                (local.set $q3 (i32.add (local.get $q3) (i32.const 16)))
                (br_if $four (i32.lt_u (local.get $p) (local.get $end))))
              (local.set $out
                (i32.add (local.get $y)
                  (i32.shl
                    (i32.add (i32.mul (local.get $r) (local.get $m)) (local.get $j))
                    (i32.const 2))))
              (f32.store (local.get $out) (call $sum (local.get $a0)))
              (f32.store offset=4 (local.get $out) (call $sum (local.get $a1)))
              (f32.store offset=8 (local.get $out) (call $sum (local.get $a2)))
              (f32.store offset=12 (local.get $out) (call $sum (local.get $a3)))
              (local.set $r (i32.add (local.get $r) (i32.const 1)))
              (br_if $rows (i32.lt_u (local.get $r) (local.get $n))))
            (local.set $w (local.get $q3))
            (local.set $j (i32.add (local.get $j) (i32.const 4)))))
        (br $column)))))
